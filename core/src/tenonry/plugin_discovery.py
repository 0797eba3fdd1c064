"""What is installed, read from metadata alone: nothing is imported here. Any process that starts engines."""

from __future__ import annotations

import difflib
import importlib.metadata
import re
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from stevedore.named import NamedExtensionManager

from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.plugin_kinds import FIRST_PARTY

KERNEL = "tenonry"


class Installed(NamedTuple):
    """One entry point: its name, target "module:attribute", and the distribution that declares it."""

    name: str
    target: str
    distribution: str
    version: str
    summary: str = ""


def kernel_version() -> str:
    return importlib.metadata.version(KERNEL)


def installed(group: str) -> list[Installed]:
    """All entry points of a group, by name. stevedore lists them; metadata says whose they are."""
    owners = _owners(group)
    found = []
    NamedExtensionManager.ENTRY_POINT_CACHE.pop(group, None)  # it would outlive a change of sys.path
    for point in NamedExtensionManager(group, names=[]).list_entry_points():
        for distribution, version, summary in owners.get((point.name, point.value), [("", "", "")]):
            found.append(Installed(point.name, point.value, distribution, version, summary))
    return sorted(found)


def _owners(group: str) -> dict[tuple[str, str], list[tuple[str, str, str]]]:
    owners: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for point in importlib.metadata.entry_points(group=group):
        dist = point.dist
        if dist is not None:
            owner = (dist.name, dist.version, _summary(dist))
            entries = owners.setdefault((point.name, point.value), [])
            if owner not in entries:
                entries.append(owner)
    return owners


def _summary(dist: importlib.metadata.Distribution) -> str:
    return dist.metadata["Summary"] if "Summary" in dist.metadata else ""


def find_entry_point(kind: str, group: str, name: str) -> Installed | None:
    """The one entry point `name` of `group`, or None. Two distributions that claim it are an error naming both."""
    matches = [entry for entry in installed(group) if entry.name == name]
    if len(matches) > 1:
        claims = " and ".join(f"{entry.distribution} {entry.version} ({entry.target})" for entry in matches)
        raise PluginError(
            f"{kind} '{name}' is claimed twice, by {claims}; uninstall one of them or give the class as module:Class"
        )
    return matches[0] if matches else None


def not_found(kind: str, group: str, name: str) -> PluginNotFound:
    """The error for an unknown name: what is installed, the nearest spelling, and what to install."""
    entries = installed(group)
    listing = ", ".join(f"{entry.name} ({entry.distribution} {entry.version})" for entry in entries) or "none"
    text = f"no {kind.replace('_', ' ')} is called '{name}'; installed: {listing}"
    near = difflib.get_close_matches(name, [entry.name for entry in entries], n=1)
    if near:
        text += f"; did you mean '{near[0]}'?"
    package = FIRST_PARTY.get((kind, name))
    if package:
        text += f"; it comes with: pip install {package}"
    elif not near:
        text += "; give an installed name, module:Class or path.py:Class"
    return PluginNotFound(text)


def distribution_of_module(module: str) -> tuple[str, str]:
    """(name, version) of the distribution that provides a module, or ("", "") for loose files."""
    top = module.partition(".")[0]
    for name in (top, top.replace("_", "-")):
        try:
            dist = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        return dist.name, dist.version
    for name in importlib.metadata.packages_distributions().get(top, ()):
        return name, importlib.metadata.version(name)
    return "", ""


def check_requirements(distribution: str) -> None:
    """Compare the distribution's declared need of the kernel with the running one, before anything is imported."""
    if not distribution or re.sub(r"[-_.]+", "-", distribution).lower() == KERNEL:
        return
    running = kernel_version()
    for text in importlib.metadata.requires(distribution) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip installed it; a spelling that only pip understands says nothing about the kernel
        if requirement.name.lower() == KERNEL and not requirement.specifier.contains(running, prereleases=True):
            raise PluginIncompatible(
                f"{distribution} {importlib.metadata.version(distribution)} needs {text}, but this is tenonry "
                f"{running}; install a release of {distribution} made for it, or change tenonry"
            )
