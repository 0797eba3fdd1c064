"""`tenonry plugins list | show`: what is installed, from metadata alone; `show` imports the one that it shows."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any, NamedTuple

from tenonry.errors import PluginError, PluginNotFound
from tenonry.interfaces.command import Command
from tenonry.plugin_discovery import Installed, check_requirements, installed, not_found
from tenonry.plugin_kinds import GROUPS
from tenonry.plugin_plan import PlanEntry

INCOMPATIBLE = "incompatible"


class Row(NamedTuple):
    """One line of the list."""

    kind: str
    name: str
    distribution: str
    version: str
    state: str
    target: str


class PluginsCommand(Command):
    """Lists and shows plugins."""

    summary = "List installed plugins, or show one."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser("list", help="Kind, name, distribution, version and state of every plugin.")
        listing.add_argument("--kind", choices=sorted(GROUPS), help="Only this kind.")
        listing.add_argument("--json", action="store_true", help="Print JSON.")
        show = verbs.add_parser("show", help="Everything about one plugin: this one is imported.")
        show.add_argument("name", help="Its name, or kind/name where a name is used by several kinds.")

    def run(self, args: argparse.Namespace) -> int:
        if args.verb == "show":
            return _show(args.name)
        rows = plugin_rows(args.kind)
        sys.stdout.write(json.dumps([row._asdict() for row in rows], indent=1) + "\n" if args.json else _table(rows))
        return 0


def plugin_rows(kind: str | None = None) -> list[Row]:
    """Every plugin of a kind, or of all."""
    rows = []
    for name, group in GROUPS.items():
        if kind in (None, name):
            entries = installed(group)
            names = [entry.name for entry in entries]
            rows += [
                Row(name, entry.name, entry.distribution, entry.version, _state(name, entry, names), entry.target)
                for entry in entries
            ]
    return rows


def _state(kind: str, entry: Installed, names: list[str]) -> str:
    """Installed is not active: only hook modules act without being chosen."""
    try:
        check_requirements(entry.distribution)
    except PluginError as error:
        return f"{INCOMPATIBLE}: {error}"
    if names.count(entry.name) > 1:
        return "conflict: two distributions claim this name"
    return "active" if kind == "hook_module" else "available"


def _table(rows: list[Row]) -> str:
    columns = ("kind", "name", "distribution", "version", "state")
    cells = [columns, *[tuple(getattr(row, column) for column in columns) for row in rows]]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() + "\n" for line in cells
    )


def _show(name: str) -> int:
    kind, _, short = name.rpartition("/")
    rows = [row for row in plugin_rows(kind or None) if row.name == short]
    if not rows:
        raise _unknown(kind, short)
    for row in rows:
        sys.stdout.write(_describe(row) + "\n")
    return 0


def _unknown(kind: str, name: str) -> PluginNotFound:
    if kind in GROUPS:
        return not_found(kind, name)
    if kind:
        return PluginNotFound(f"there is no kind of plugin '{kind}'; kinds: {', '.join(sorted(GROUPS))}")
    return PluginNotFound(f"no plugin is called '{name}'; `tenonry plugins list` shows all names")


def _describe(row: Row) -> str:
    lines = [
        f"{row.kind} {row.name}",
        f"  class         {row.target}",
        f"  distribution  {row.distribution} {row.version}",
        f"  state         {row.state}",
    ]
    if row.state.startswith(INCOMPATIBLE):  # what does not fit is not even imported
        return "\n".join(lines)
    found = PlanEntry(
        kind=row.kind, name=row.name, target=row.target, distribution=row.distribution, version=row.version
    ).load()
    text = inspect.getdoc(found)
    if text:
        lines += ["  about         " + text.splitlines()[0]]
    fields: dict[str, Any] = getattr(getattr(found, "Options", None), "model_fields", {})
    for name, field in fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        lines.append(f"  option        {name}: {field.description or field.annotation} ({default})")
    return "\n".join(lines)
