"""What is installed, read from metadata alone: nothing is imported here. Any process that starts engines."""

from __future__ import annotations

import contextlib
import difflib
import functools
import importlib.metadata
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from stevedore.named import NamedExtensionManager

from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.info import PluginRecord
from tenonry.plugin.kinds import FIRST_PARTY, GROUPS
from tenonry.version import __version__

KERNEL = "tenonry"


class _Extensions(NamedExtensionManager):  # type: ignore[type-arg]  # not generic in every release
    """stevedore without its cache on disk, which takes a group for unchanged for two minutes and would hide a plugin
    from whoever has just installed it.
    """

    def list_entry_points(self) -> list[importlib.metadata.EntryPoint]:
        return list(_entry_points(_path_state()).select(group=self.namespace))


def installed(kind: str) -> list[PluginRecord]:
    """All entry points of a kind, by name; nothing is imported."""
    return list(_installed(kind, _path_state()))


def _path_state() -> tuple[tuple[str, int], ...]:
    """`sys.path`, and when each of its folders changed last, as one does with every distribution that comes or goes."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):  # it is not there, or not for us
            found.append((folder, Path(folder).stat().st_mtime_ns))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def _entry_points(state: object) -> Any:  # noqa: ARG001 - what the answer depends on
    """Those of all groups. A file of every distribution is read for them, and a start asks dozens of times."""
    return importlib.metadata.entry_points()


@functools.lru_cache(maxsize=64)
def _installed(kind: str, state: object) -> list[PluginRecord]:  # noqa: ARG001
    points: Any = _Extensions(GROUPS[kind], names=[]).list_entry_points()
    return sorted(
        {PluginRecord(kind, one.name, one.value, one.dist.name, one.dist.version) for one in points}
    )


def find_entry_point(kind: str, name: str) -> PluginRecord | None:
    """The plugin of a kind with this name, or None. Two distributions that claim it are an error naming both."""
    matches = [entry for entry in installed(kind) if entry.name == name]
    if len(matches) > 1:
        claims = " and ".join(
            f"{entry.distribution} {entry.version} ({entry.target})" for entry in matches
        )
        raise PluginError(
            f"{kind} '{name}' is claimed twice, by {claims}; uninstall one of them or give the class as module:Class"
        )
    return matches[0] if matches else None


def not_found(kind: str, name: str) -> PluginNotFound:
    """The error for an unknown name: what is installed, the nearest spelling, and what to install."""
    entries = installed(kind)
    listing = (
        ", ".join(f"{entry.name} ({entry.distribution} {entry.version})" for entry in entries)
        or "none"
    )
    text = f"no {kind.replace('_', ' ')} is called '{name}'; installed: {listing}"
    if near := difflib.get_close_matches(name, [entry.name for entry in entries], n=1):
        text += f"; did you mean '{near[0]}'?"
    if package := FIRST_PARTY.get((kind, name)):
        text += f"; it comes with: pip install {package}"
    elif not near:
        text += "; give an installed name, module:Class or path.py:Class"
    return PluginNotFound(text)


def distribution_of_module(module: str) -> tuple[str, str]:
    """(name, version) of the distribution that provides a module, or ("", "") for loose files."""
    top = module.partition(".")[0]
    try:
        dist = importlib.metadata.distribution(
            top
        )  # most are called as their module is, but for dashes
    except importlib.metadata.PackageNotFoundError:
        owners = _packages(_path_state()).get(top)
        return (owners[0], importlib.metadata.version(owners[0])) if owners else ("", "")
    return dist.name, dist.version


@functools.lru_cache(maxsize=1)
def _packages(state: object) -> Mapping[str, list[str]]:  # noqa: ARG001
    """Module → distributions; read from every file list there is."""
    return importlib.metadata.packages_distributions()


def check_requirements(distribution: str) -> None:
    """Compare the distribution's declared need of the kernel with the running one, before anything is imported."""
    if not distribution or canonicalize_name(distribution) == KERNEL:
        return
    for text in importlib.metadata.requires(distribution) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip installed it; a spelling that only pip understands says nothing about the kernel
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if (
            applies
            and canonicalize_name(requirement.name) == KERNEL
            and not requirement.specifier.contains(__version__, prereleases=True)
        ):
            raise PluginIncompatible(
                f"{distribution} {importlib.metadata.version(distribution)} needs {text}, but this is tenonry "
                f"{__version__}; install a release of {distribution} made for it, or change tenonry"
            )
