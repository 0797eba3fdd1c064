"""Faults of the installed plugins and their versions. Command line."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenonry.plugin import Point
from tenonry.version import __version__
from tenonry_author_tools.declared import check_metadata
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.imported import check_import
from tenonry_author_tools.subject import PREFIX, Subject, read_installed
from tenonry_commands.plugins import BROKEN, plugins, points

KERNEL = "tenonry"
# Distributions of this project that `tenonry[standard]` does not name.
OTHERS = {"testkit", "executor-ray", "failpoints", "grammar-xgrammar"}


def first_party() -> set[str]:
    """Distributions of this project, by the kernel's own metadata."""
    named = {Requirement(line).name for line in importlib.metadata.requires(KERNEL) or ()}
    own = {canonicalize_name(name) for name in named if name.startswith(f"{KERNEL}-")}
    return own | {KERNEL} | {f"{KERNEL}-{name}" for name in OTHERS}


def examine(timeout_s: float) -> list[Finding]:
    """All findings: versions of this project, and the plugins of others."""
    known, own = points(), first_party()
    findings = [*_versions(own), *_broken_points()]
    for subject in third_party(known, own):
        findings += check_metadata(subject, known)
        for record, point in subject.records:
            findings += check_import(subject, record, point, timeout_s)
    return findings


def third_party(known: list[Point], own: set[str]) -> Iterator[Subject]:
    """Distributions of others with plugins, in the order of their names."""
    found = {}
    for dist in importlib.metadata.distributions():
        name = dist.metadata["Name"] or ""
        groups = {point.group for point in known}
        is_plugin = any(
            each.group in groups or each.group.startswith(f"{PREFIX}.")
            for each in dist.entry_points
        )
        if is_plugin and canonicalize_name(name) not in own:
            found.setdefault(canonicalize_name(name), dist)
    for _, dist in sorted(found.items()):
        yield read_installed(dist, known)


def _versions(own: set[str]) -> Iterator[Finding]:
    """Distributions of this project of another version than the kernel, and several copies of one."""
    places: dict[str, list[str]] = {}
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"] or "")
        if name not in own:
            continue
        folder = str(dist.locate_file(""))
        places.setdefault(name, [])
        if folder not in places[name]:
            places[name].append(folder)
        if dist.version != __version__:
            text = f"it is {dist.version}, and tenonry is {__version__}"
            advice = f"pip install {name}=={__version__}"
            yield Finding(Rule.KERNEL, f"{name} {dist.version}", text, folder, 0, advice)
    for name, folders in places.items():
        if folders[1:]:
            text = f"there are {len(folders)} copies: {', '.join(folders)}; the first is used"
            yield Finding(Rule.COPIES, name, text, folders[1])


def _broken_points() -> Iterator[Finding]:
    """Points that cannot be read: plugins for them are not found."""
    for listed in plugins("point"):
        if listed.state.startswith(BROKEN):
            label = f"{listed.record.distribution} {listed.record.version}"
            yield Finding(Rule.IMPORT, label, listed.state, listed.record.target)
