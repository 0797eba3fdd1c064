"""Faults of the installed plugins and their versions. Command line."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Container, Iterator

from packaging.utils import canonicalize_name

from tenonry.plugin import Point
from tenonry.plugin.discovery import misspelt_groups
from tenonry.plugin.kinds import POINTS
from tenonry.version import __version__
from tenonry_author_tools.declared import check_metadata
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.first_party import first_party, third_party
from tenonry_author_tools.imported import check_import
from tenonry_author_tools.subject import metadata_folder, read_installed
from tenonry_commands.plugins import BROKEN, plugins, points

# Of a point whose module must not be imported in this process.
UNREADABLE = {Rule.IMPORT, Rule.HANG, Rule.EXIT, Rule.INTERFACE}


def examine(timeout_s: float) -> list[Finding]:
    """All findings: versions of this project, and the plugins of others."""
    known, findings = checked_points(timeout_s)
    groups = {point.group for point in known}
    others = third_party({*groups, *misspelt_groups(known)})
    own = first_party()
    findings = [*_versions(own), *_copies({*own, *others}), *findings]
    for dist in others.values():
        subject = read_installed(dist, known)
        findings += check_metadata(subject, known)
        for record, point in subject.records:
            if point is not POINTS:  # checked above
                findings += check_import(subject, record, point, timeout_s)
    return findings


def checked_points(timeout_s: float) -> tuple[list[Point], list[Finding]]:
    """All points that can be read, and findings about points.

    Points of others are imported in a process of their own first: their modules may hang or end the process.
    """
    findings, skip = [], set()
    for dist in third_party().values():
        subject = read_installed(dist, [POINTS])
        for record, point in subject.records:
            found = [*check_import(subject, record, point, timeout_s)]
            findings += found
            if any(finding.rule in UNREADABLE for finding in found):
                skip.add(record.distribution)
    return points(skip), [*findings, *_broken_points(skip)]


def _versions(own: set[str]) -> Iterator[Finding]:
    """Distributions of this project of another version than the kernel."""
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"] or "")
        if name in own and dist.version != __version__:
            text = f"it is {dist.version}, and tenonry is {__version__}"
            advice = f"pip install {name}=={__version__}"
            folder = str(dist.locate_file(""))
            yield Finding(Rule.KERNEL, f"{name} {dist.version}", text, folder, 0, advice)


def _copies(names: Container[str]) -> Iterator[Finding]:
    """Distributions that are installed more than once."""
    places: dict[str, dict[str, str]] = {}
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"] or "")
        if name in names:
            places.setdefault(name, {})[str(metadata_folder(dist))] = dist.version
    for name, folders in places.items():
        if len(folders) > 1:
            copies = ", ".join(f"{version} ({folder})" for folder, version in folders.items())
            text = f"there are {len(folders)} copies: {copies}; the first is used"
            yield Finding(Rule.COPIES, name, text, [*folders][1])


def _broken_points(skip: Collection[str]) -> Iterator[Finding]:
    """Points that cannot be read: plugins for them are not found. `skip`: distributions with findings."""
    for listed in plugins("point", skip):
        if listed.state.startswith(BROKEN):
            label = f"{listed.record.distribution} {listed.record.version}"
            yield Finding(Rule.IMPORT, label, listed.state, listed.record.target)
