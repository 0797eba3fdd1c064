"""Files of a package as its current interfaces need them. Command line; imports no plugin."""

from __future__ import annotations

import difflib
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenonry.errors import PluginIncompatible
from tenonry.info import PluginRecord
from tenonry.plugin import Point
from tenonry.plugin.checks import supported_versions
from tenonry.version import __version__
from tenonry_author_tools.first_party import first_party
from tenonry_author_tools.rewrite import Edit, Rewriter, declared_version, edited
from tenonry_author_tools.scaffold import version_range
from tenonry_author_tools.subject import Subject
from tenonry_commands import moves

Changes = dict[Path, tuple[str, str]]


def planned(subject: Subject) -> Changes:
    """Old and new text of each file to change. Raises PluginIncompatible for one older than N−1 or newer than N."""
    old = [(record, point) for record, point in subject.records if _is_old(subject, record, point)]
    edits: dict[Path, list[Edit]] = defaultdict(list)
    for record, point in old:
        file, name = source_of(subject, record)
        current = supported_versions(point.load_base())[-1]
        tables = [
            each for each in moves.MOVES if (each.kind, each.version) == (point.kind, current)
        ]
        rewriter = Rewriter(file.read_text("utf-8"))
        edits[file] += rewriter.raised_versions({name}, current)
        for table in tables:
            edits[file] += rewriter.renamed_members({name}, table.members)
            for path in _sources(subject):
                edits[path] += Rewriter(path.read_text("utf-8")).renamed_imports(table.names)
    texts = {path: path.read_text("utf-8") for path in edits}
    changes = {path: (text, edited(text, edits[path])) for path, text in texts.items()}
    text = subject.metadata.read_text("utf-8")
    changes[subject.metadata] = text, _with_requirements(text, is_carried=bool(old))
    return {path: pair for path, pair in changes.items() if pair[0] != pair[1]}


def source_of(subject: Subject, record: PluginRecord) -> tuple[Path, str]:
    """File and class of a plugin."""
    module, _, name = record.target.partition(":")
    stem = subject.path[0].joinpath(*module.split("."))
    file = stem.with_suffix(".py")
    return (file if file.is_file() else stem / "__init__.py"), name


def diff(path: Path, old: str, new: str) -> str:
    """Unified diff of a file."""
    lines = (text.splitlines(keepends=True) for text in (old, new))
    return "".join(difflib.unified_diff(*lines, f"{path}", f"{path}"))


def _is_old(subject: Subject, record: PluginRecord, point: Point) -> bool:
    """Return True for a plugin of interface version N−1; one that declares none is of the kernel's."""
    base = point.load_base()
    file, name = source_of(subject, record)
    if getattr(base, "interface_version", None) is None or not file.is_file():
        return False
    version, supported = declared_version(file.read_text("utf-8"), name), supported_versions(base)
    if version is None or version in supported:
        return version == supported[-1] - 1
    newer = version > supported[-1]
    advice = (
        "install a newer tenonry"
        if newer
        else "update it first with the release of tenonry before this one"
    )
    raise PluginIncompatible(
        f"{record.label()} is of version {version} of the {point.kind} interface, and this tenonry carries version "
        f"{supported[-1] - 1} to {supported[-1]}; {advice}"
    )


def _sources(subject: Subject) -> Iterator[Path]:
    """Modules and tests of the package."""
    for folder in (*subject.path, *filter(None, [subject.tests])):
        yield from (path for path in sorted(folder.rglob("*.py")) if ".venv" not in path.parts)


def _with_requirements(text: str, *, is_carried: bool) -> str:
    """Metadata that require this release of the project, where a plugin was carried or the release is excluded."""
    project: dict[str, Any] = tomllib.loads(text)["project"]
    lines = [*project.get("dependencies", ())]
    for extra in project.get("optional-dependencies", {}).values():
        lines += extra
    own = first_party()
    for line in lines:
        found = Requirement(line)
        is_own = canonicalize_name(found.name) in own and found.url is None
        if is_own and (is_carried or not found.specifier.contains(__version__, prereleases=True)):
            extras = f"[{','.join(sorted(found.extras))}]" if found.extras else ""
            marker = f"; {found.marker}" if found.marker else ""
            new = f"{found.name}{extras}{version_range()}{marker}"
            for quote in "\"'":
                text = text.replace(f"{quote}{line}{quote}", _quoted(new, quote))
    return text


def _quoted(text: str, quote: str) -> str:
    """A TOML string; markers contain double quotes."""
    return f"'{text}'" if '"' in text else f"{quote}{text}{quote}"
