"""`tenonry plugins list | show`: installed plugins, from metadata alone; `show` imports only the shown one.

Other packages add verbs below `plugins` by the entry-point group `tenonry.plugin_commands`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import inspect
import json
import logging
import sys
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from tenonry.config import PluginChoice
from tenonry.errors import PluginError, PluginNotFound, TenonryError
from tenonry.info import PluginRecord
from tenonry.interfaces.command import Command
from tenonry.interfaces.plugin import PluginSettings
from tenonry.plugin import Point
from tenonry.plugin.checks import check_plugin
from tenonry.plugin.discovery import check_requirements, installed, misspelt_groups, not_found
from tenonry.plugin.kinds import HOOK_MODULES, KINDS, POINTS, SETTINGS
from tenonry.plugin.manager import blamed, qualified_record, resolve_point, settings_of
from tenonry.plugin.plan import import_target
from tenonry_commands.flags import flags_of
from tenonry_commands.setting_texts import setting_texts

logger = logging.getLogger("tenonry.commands")

INCOMPATIBLE = "incompatible"
BROKEN = "broken"
MISSPELT = "never found"
HEAVY = ("torch", "transformers", "ray", "fastapi", "uvicorn", "jax", "tensorflow", "pandas")
PLUGIN_COMMANDS = Point(
    "tenonry.plugin_commands",
    "tenonry.interfaces.command:Command",
    dict.fromkeys(("check", "dev", "lock", "new", "update"), "tenonry-author-tools"),
)
NO_POINT = Point("object")  # unknown interface: only its owner knows the purpose of a class


class Listed(NamedTuple):
    """One plugin with its state, and the point that it is installed for."""

    record: PluginRecord
    state: str
    point: Point


class PluginsCommand(Command):
    """Lists and shows plugins, and has the verbs of other packages."""

    summary = "List, show, write, check, update and lock plugins."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        listing = verbs.add_parser(
            "list", help="List kind, name, distribution, version, tier and state of every plugin."
        )
        listing.add_argument("--kind", help="Plugins of this kind only.")
        listing.add_argument("--json", action="store_true", help="Print JSON.")
        show = verbs.add_parser("show", help="Show one plugin in detail; imports it.")
        show.add_argument(
            "name",
            help="Name (kind/name where several kinds use it), module:Class or path.py:Class.",
        )
        for record in installed(PLUGIN_COMMANDS):
            _add_verb(verbs, record.name)

    def run(self, args: argparse.Namespace) -> int:
        if "command" in args:
            return _run_verb(args)
        if args.verb == "show":
            return _show(args.name)
        found = plugins(args.kind)
        if args.json:
            rows = [_row(listed) for listed in found]
            sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        else:
            sys.stdout.write(_table(found))
        return 0


def _add_verb(verbs: Any, name: str) -> None:
    """Add a verb of another package. One that cannot be used is reported, and hides no other verb."""
    try:
        found, record = resolve_point(PLUGIN_COMMANDS, name)
        with blamed(record, "its arguments"):
            command = found()
            parser = verbs.add_parser(name, help=command.summary, description=command.summary)
            command.add_arguments(parser)
    except PluginError as error:
        logger.warning("skipped `tenonry plugins %s`: %s", name, error)
        return
    parser.set_defaults(command=command, record=record)


def _run_verb(args: argparse.Namespace) -> int:
    """Run a verb of another package. Raises PluginFault for a fault that is not an OSError."""
    try:
        status: int = args.command.run(args)
    except (TenonryError, OSError):
        raise
    except Exception as error:
        raise args.record.fault("its command", error) from error
    return status


def points(skip: Collection[str] = ()) -> list[Point]:
    """Every point: the kernel's kinds, those that installed distributions open, and hook modules.

    A point that cannot be read is skipped; `plugins` lists it as broken. `skip`: distributions whose points are not
    imported.
    """
    opened = []
    for record in installed(POINTS):
        if record.distribution in skip:
            continue
        with contextlib.suppress(PluginError):
            opened.append(_read_point(record))
    return [*KINDS.values(), *opened, POINTS, HOOK_MODULES]


def _read_point(record: PluginRecord) -> Point:
    """The value of an entry point in `tenonry.points`; its module is imported. Raises PluginError."""
    check_requirements(record.distribution)
    point = import_target(record)
    if not isinstance(point, Point):
        raise PluginError(f"{record.label()} is not a tenonry.plugin.Point")
    return point


def plugins(kind: str | None = None, skip: Collection[str] = ()) -> list[Listed]:
    """Every plugin of a kind, or of all, with its state. Raises PluginNotFound for an unknown kind.

    `skip`: distributions that are left out, and whose points are not imported.
    """
    known = points(skip)
    wanted = [point for point in known if kind in (None, point.kind)]
    if not wanted:
        kinds = sorted({point.kind for point in known})
        raise PluginNotFound(f"there is no kind of plugin '{kind}'; kinds: {', '.join(kinds)}")
    found = []
    for point in wanted:
        records = [record for record in installed(point) if record.distribution not in skip]
        found += [Listed(record, _state(record, records), point) for record in records]
    return found + _misplaced(wanted, known)


def _misplaced(wanted: list[Point], known: list[Point]) -> list[Listed]:
    """Entry points in a misspelt group, which no resolver reads."""
    found = []
    for group, meant in misspelt_groups(known).items():
        point = next(point for point in known if point.group == meant)
        state = f"{MISSPELT}: nothing reads the group '{group}'; write '{meant}'"
        if point in wanted:
            found += [
                Listed(record, state, point) for record in installed(Point(group, kind=point.kind))
            ]
    return found


def _state(record: PluginRecord, records: Sequence[PluginRecord]) -> str:
    """Installed is not active: only hook modules act without being chosen."""
    problem = _incompatible(record)
    if problem:
        return f"{INCOMPATIBLE}: {problem}"
    rivals = [other for other in records if other.name == record.name and not _incompatible(other)]
    if len(rivals) > 1:
        return "conflict: two distributions claim this name"
    if record.kind == POINTS.kind:
        try:
            _read_point(record)
        except PluginError as error:
            return f"{BROKEN}: {error}"
    return "active" if record.kind == HOOK_MODULES.kind else "available"


def _incompatible(record: PluginRecord) -> str:
    """Reason why the running kernel cannot use the plugin's distribution; empty if it can."""
    try:
        check_requirements(record.distribution)
    except PluginError as error:
        return str(error)
    return ""


def _row(listed: Listed) -> dict[str, str]:
    record = listed.record
    return {
        "kind": record.kind,
        "name": record.name,
        "target": record.target,
        "distribution": record.distribution,
        "version": record.version,
        "tier": listed.point.tier,
        "state": listed.state,
    }


def _table(found: list[Listed]) -> str:
    cells = [("kind", "name", "distribution", "version", "tier", "state")]
    for listed in found:
        record = listed.record
        origin = record.distribution, record.version
        cells.append((record.kind, record.name, *origin, listed.point.tier, listed.state))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() + "\n"
        for line in cells
    )


def _show(name: str) -> int:
    if ":" in name:
        known = set(sys.modules)
        sys.stdout.write(_describe(_named_by_class(name), known) + "\n")
        return 0
    kind, _, short = name.rpartition("/")
    found = [listed for listed in plugins(kind or None) if listed.record.name == short]
    if not found and kind:
        raise not_found(next(point for point in points() if point.kind == kind), short)
    if not found:
        near = difflib.get_close_matches(short, [listed.record.name for listed in plugins()], n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise PluginNotFound(
            f"no plugin is called '{short}'; {hint}`tenonry plugins list` shows all names"
        )
    for listed in found:
        sys.stdout.write(_describe(listed, set(sys.modules)) + "\n")
    return 0


def _named_by_class(name: str) -> Listed:
    """Plugin of `module:Class` or `path.py:Class`, whose interface determines the point."""
    record = qualified_record(NO_POINT.kind, PluginChoice(name=name))
    found = import_target(record)
    point = next((kind for kind in KINDS.values() if _derives(found, kind)), NO_POINT)
    return Listed(msgspec.structs.replace(record, kind=point.kind), "available", point)


def _derives(found: Any, point: Point) -> bool:
    base = point.load_base()
    return base is not None and inspect.isclass(found) and issubclass(found, base)


def _describe(listed: Listed, known: set[str]) -> str:
    """Everything about one; `known` are the modules that were imported before it. Raises PluginError if it is wrong."""
    entry, state, point = listed
    if state.startswith((MISSPELT, BROKEN)):
        raise PluginError(f"{entry.label()}: {state}")
    lines = [
        f"{entry.kind} {entry.name}",
        f"  file          {entry.path}" if entry.path else f"  class         {entry.target}",
        *([f"  distribution  {entry.distribution} {entry.version}"] if entry.distribution else []),
        f"  tier          {point.tier}",
        f"  state         {state}",
    ]
    if state.startswith(INCOMPATIBLE):  # what does not fit is not even imported
        return "\n".join(lines)
    found = import_target(entry)
    check_plugin(found, entry, point)
    heavy = [name for name in HEAVY if name in sys.modules and name not in known]
    if heavy and entry.kind in KINDS:
        names = " and ".join(heavy)
        lines += [
            f"  warning       its module imports {names}; do that in its methods: the front end imports it to check it"
        ]
    text = inspect.cleandoc(
        found.__doc__ or ""
    )  # its own: an interface does not describe a single plugin
    if text:
        first, *rest = text.splitlines()
        lines += [
            f"  about         {first}",
            *(f"                {line}".rstrip() for line in rest),
        ]
    fields: dict[str, Any] = getattr(getattr(found, "Options", None), "model_fields", {})
    for name, field in fields.items():
        default = "required" if field.is_required() else f"default {field.default!r}"
        lines.append(f"  option        {name}: {field.description or field.annotation} ({default})")
    settings: type[PluginSettings] = getattr(found, "Settings", PluginSettings)
    if (named := settings_of(entry)) is not settings:
        raise PluginError(
            f"{entry.label()} has the settings {settings}, but '{SETTINGS.group}' names {named}; name the same"
        )
    texts = setting_texts(settings)
    for name, field in settings.model_fields.items():
        flags = ", ".join(flags_of(name, field))
        about = field.description or texts.get(name, str(field.annotation))
        lines.append(f"  setting       {flags}: {about} (default {field.default!r})")
    return "\n".join(lines)
