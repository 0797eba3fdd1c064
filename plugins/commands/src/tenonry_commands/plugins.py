"""`tenonry plugins list | show`: what is installed, from metadata alone; `show` imports the one that it shows."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from typing import Any

import msgspec

from tenonry.config import PluginChoice
from tenonry.errors import PluginError, PluginNotFound
from tenonry.info import PluginRecord
from tenonry.interfaces.command import Command
from tenonry.plugin.discovery import check_requirements, installed, not_found
from tenonry.plugin.kinds import GROUPS, KINDS
from tenonry.plugin.manager import qualified_entry
from tenonry.plugin.plan import PlanEntry, import_target

INCOMPATIBLE = "incompatible"
HEAVY = ("torch", "transformers", "ray", "fastapi", "uvicorn", "jax", "tensorflow", "pandas")
NO_KIND = "object"  # of a point that an owner opens: what it is for, only the owner knows


class PluginsCommand(Command):
    """Lists and shows plugins."""

    summary = "List installed plugins, or show one."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser(
            "list", help="Kind, name, distribution, version and state of every plugin."
        )
        listing.add_argument("--kind", choices=sorted(GROUPS), help="Only this kind.")
        listing.add_argument("--json", action="store_true", help="Print JSON.")
        show = verbs.add_parser("show", help="Everything about one plugin: this one is imported.")
        show.add_argument(
            "name",
            help="Its name (kind/name where several kinds use it), module:Class or path.py:Class.",
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.verb == "show":
            return _show(args.name)
        found = plugins(args.kind)
        if args.json:
            told = [{**msgspec.structs.asdict(entry), "state": state} for entry, state in found]
            sys.stdout.write(json.dumps(told, indent=1) + "\n")
        else:
            sys.stdout.write(_table(found))
        return 0


def plugins(kind: str | None = None) -> list[tuple[PluginRecord, str]]:
    """Every plugin of a kind, or of all, with its state."""
    found = []
    for name in GROUPS:
        if kind in (None, name):
            entries = installed(name)
            names = [entry.name for entry in entries]
            found += [(entry, _state(entry, names)) for entry in entries]
    return found


def _state(entry: PluginRecord, names: list[str]) -> str:
    """Installed is not active: only hook modules act without being chosen."""
    try:
        check_requirements(entry.distribution)
    except PluginError as error:
        return f"{INCOMPATIBLE}: {error}"
    if names.count(entry.name) > 1:
        return "conflict: two distributions claim this name"
    return "active" if entry.kind == "hook_module" else "available"


def _table(found: list[tuple[PluginRecord, str]]) -> str:
    cells = [("kind", "name", "distribution", "version", "state")]
    cells += [
        (entry.kind, entry.name, entry.distribution, entry.version, state) for entry, state in found
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in cells
    )


def _show(name: str) -> int:
    if ":" in name:
        known = set(sys.modules)
        sys.stdout.write(_describe(_named_by_class(name), "available", known) + "\n")
        return 0
    kind, _, short = name.rpartition("/")
    if kind and kind not in GROUPS:
        raise PluginNotFound(
            f"there is no kind of plugin '{kind}'; kinds: {', '.join(sorted(GROUPS))}"
        )
    found = [(entry, state) for entry, state in plugins(kind or None) if entry.name == short]
    if not found and kind:
        raise not_found(kind, short)
    if not found:
        raise PluginNotFound(
            f"no plugin is called '{short}'; `tenonry plugins list` shows all names"
        )
    for record, state in found:
        entry = PlanEntry(**msgspec.structs.asdict(record))
        sys.stdout.write(_describe(entry, state, set(sys.modules)) + "\n")
    return 0


def _named_by_class(name: str) -> PlanEntry:
    """The entry of `module:Class` or `path.py:Class`: its interface says which kind it is."""
    entry = qualified_entry(NO_KIND, PluginChoice(name=name))
    found = import_target(entry)
    kinds = [
        kind.name
        for kind in KINDS.values()
        if inspect.isclass(found) and _implements(found, kind.name)
    ]
    return msgspec.structs.replace(entry, kind=kinds[0] if kinds else NO_KIND)


def _implements(found: type, kind: str) -> bool:
    interface, _ = KINDS[kind].load_interface()
    return issubclass(found, interface)


def _describe(entry: PlanEntry, state: str, known: set[str]) -> str:
    """Everything about one; `known` are the modules that were imported before it."""
    lines = [
        f"{entry.kind} {entry.name}",
        f"  file          {entry.path}" if entry.path else f"  class         {entry.target}",
        *([f"  distribution  {entry.distribution} {entry.version}"] if entry.distribution else []),
        f"  state         {state}",
    ]
    if state.startswith(INCOMPATIBLE):  # what does not fit is not even imported
        return "\n".join(lines)
    found = entry.load()
    heavy = [name for name in HEAVY if name in sys.modules and name not in known]
    if heavy and entry.kind in KINDS:
        names = " and ".join(heavy)
        lines += [
            f"  warning       its module imports {names}; do that in its methods: the front end imports it to check it"
        ]
    text = inspect.cleandoc(
        found.__doc__ or ""
    )  # its own: an interface says nothing about one plugin
    if text:
        lines += ["  about         " + text.splitlines()[0]]
    fields: dict[str, Any] = getattr(getattr(found, "Options", None), "model_fields", {})
    for name, field in fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        lines.append(f"  option        {name}: {field.description or field.annotation} ({default})")
    return "\n".join(lines)
