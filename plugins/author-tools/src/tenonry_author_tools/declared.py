"""Rules about metadata; nothing is imported. Command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from tenonry.plugin import Point
from tenonry.plugin.discovery import installed
from tenonry.version import __version__
from tenonry_author_tools.findings import Finding, Rule
from tenonry_author_tools.scaffold import version_range
from tenonry_author_tools.subject import Subject

KERNEL = "tenonry"


def check_metadata(subject: Subject, points: list[Point]) -> Iterator[Finding]:
    """Breaches of rules about names, versions, entry points and files."""
    label, file = subject.label, str(subject.metadata)
    if subject.missing:
        yield Finding(
            Rule.METADATA, label, f"[project] lacks {', '.join(subject.missing)}", file, 1
        )
    groups = [point.group for point in points]
    for group, name in subject.unknown:
        near = difflib.get_close_matches(group, groups, n=1)
        advice = f"write '{near[0]}'" if near else ""
        text = f"nothing reads the group '{group}' of '{name}'"
        yield Finding(Rule.ENTRY_POINT, label, text, *subject.place_of(group), advice)
    if not subject.records and not subject.unknown:
        yield Finding(Rule.ENTRY_POINT, label, "it names no plugin", file, 1)
    for path in subject.pth:
        text = "it runs whenever any Python of this environment starts"
        yield Finding(Rule.PTH, label, text, str(path), 1)
    yield from _check_bounds(subject)
    for record, point in subject.records:
        own = canonicalize_name(subject.name)
        for other in installed(point):
            if other.name == record.name and canonicalize_name(other.distribution) != own:
                kind = record.kind.replace("_", " ")
                text = f"{kind} '{record.name}' is also a name of {other.label()}"
                yield Finding(Rule.NAME_TAKEN, label, text, *subject.entry_point(record))


def _check_bounds(subject: Subject) -> Iterator[Finding]:
    """The range of the kernel: present, with an upper bound, and holding the running version."""
    label, file = subject.label, str(subject.metadata)
    advice = f'write "tenonry{version_range()}"'
    found = None
    for line in subject.requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        if canonicalize_name(requirement.name) == KERNEL:
            found = requirement
            place = subject.line_of(line.partition(">")[0].partition("<")[0].strip() or KERNEL)
            bounds = {each.operator for each in requirement.specifier}
            if not bounds & {"<", "<=", "==", "~=", "==="}:
                text = f"'{line}' has no upper bound"
                yield Finding(Rule.BOUNDS, label, text, file, place, advice)
            if not requirement.specifier.contains(__version__, prereleases=True):
                text = f"it needs '{line}', and this is tenonry {__version__}"
                yield Finding(Rule.KERNEL, label, text, file, place)
    if found is None:
        yield Finding(Rule.BOUNDS, label, "it does not require tenonry", file, 1, advice)
