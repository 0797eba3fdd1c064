"""Faults of the installed plugins and their versions. Command line."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from packaging.utils import canonicalize_name

from tenonry.version import __version__
from tenonry_author_tools.declared import check_metadata
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.first_party import first_party, third_party
from tenonry_author_tools.imported import check_import
from tenonry_author_tools.subject import read_installed
from tenonry_commands.plugins import BROKEN, plugins, points


def examine(timeout_s: float) -> list[Finding]:
    """All findings: versions of this project, and the plugins of others."""
    known, own = points(), first_party()
    findings = [*_versions(own), *_broken_points()]
    for dist in third_party({point.group for point in known}).values():
        subject = read_installed(dist, known)
        findings += check_metadata(subject, known)
        for record, point in subject.records:
            findings += check_import(subject, record, point, timeout_s)
    return findings


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
