"""Deprecated names of this project that a plugin uses: reported by `tenonry plugins check`, and as warnings by a start.

Any process; the plugin is imported.
"""

from __future__ import annotations

import functools
import importlib.metadata
import inspect
import logging
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenonry.info import PluginRecord
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.plan import import_target, load_class
from tenonry_commands import moves

logger = logging.getLogger("tenonry.plugins")


def deprecations(found: Any, base: Any) -> Iterator[tuple[str, str, int]]:
    """Deprecated names that the plugin's modules import, and deprecated members that its class overrides.

    A name is deprecated by `warnings.deprecated` or its twin in `typing_extensions`, which keep the reason.
    """
    name: str = getattr(found, "__module__", "") or getattr(found, "__name__", "")
    package = name.partition(".")[0]
    for module_name, module in [*sys.modules.items()]:
        if module_name.partition(".")[0] != package or module is None:
            continue
        file = getattr(module, "__file__", None) or ""
        for key, value in [*vars(module).items()]:
            owner = getattr(value, "__module__", None) or ""
            reason = vars(value).get("__deprecated__") if hasattr(value, "__dict__") else None
            if reason and owner.startswith("tenonry") and owner.partition(".")[0] != package:
                yield f"the deprecated {owner}.{key}: {reason}", file, _line_of(file, key)
    for owner in getattr(found, "__mro__", ()):
        if owner is base:
            break
        for key in vars(owner):
            member = getattr(base, key, None)
            if reason := getattr(getattr(member, "fget", member), "__deprecated__", None):
                file, line = source_of(owner) or ("", 0)
                yield f"the deprecated member {base.__name__}.{key}: {reason}", file, line


def _line_of(file: str, name: str) -> int:
    """First line of a file with a word; 0 without one."""
    lines = Path(file).read_text("utf-8").splitlines() if file.endswith(".py") else []
    found = (number for number, line in enumerate(lines, 1) if re.search(rf"\b{name}\b", line))
    return next(found, 0)


def source_of(found: Any) -> tuple[str, int] | None:
    """File and line of a class or function."""
    try:
        return inspect.getsourcefile(found) or "", inspect.getsourcelines(found)[1]
    except (OSError, TypeError):
        return None


def moved(found: Any, kind: str) -> Iterator[tuple[str, str, int]]:
    """Members by names that a later version of the interface than the plugin's has renamed."""
    version = getattr(found, "interface_version", None) or 1
    for each in moves.MOVES:
        if each.kind == kind and each.version > version:
            for owner in getattr(found, "__mro__", ()):
                for old in each.members.keys() & vars(owner).keys():
                    file, line = source_of(owner) or ("", 0)
                    yield f"{old}, which is now {each.members[old]}", file, line


def warn_of_deprecations(records: Iterable[PluginRecord]) -> None:
    """Warn about each deprecated name that plugins of others use, once. Raises PluginError for one that fails.

    Plugins of the kernel's kinds are imported, as the start will; others only count if they are imported.
    """
    for record in records:
        is_kind = record.kind in KINDS
        if record.distribution in _own() or not (
            is_kind or record.target.partition(":")[0] in sys.modules
        ):
            continue
        found = load_class(record) if is_kind else import_target(record)
        base = KINDS[record.kind].load_base() if is_kind else None
        for text, file, line in (*deprecations(found, base), *moved(found, record.kind)):
            logger.warning(
                "%s uses %s (%s:%d); `tenonry plugins update` rewrites moved names",
                record.label(),
                text,
                file,
                line,
            )


@functools.cache
def _own() -> set[str]:
    """Distributions that the kernel's metadata names: those of this project."""
    lines = importlib.metadata.requires("tenonry") or ()
    names = {canonicalize_name(Requirement(line).name) for line in lines}
    return {"tenonry"} | {name for name in names if name.startswith("tenonry-")}
