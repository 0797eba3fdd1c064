"""The distribution under check: an installed one, or a folder with pyproject.toml. Command line; imports no plugin."""

from __future__ import annotations

import contextlib
import difflib
import importlib.metadata
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from tenonry.errors import ConfigError, PluginNotFound
from tenonry.info import PluginRecord
from tenonry.plugin import Point
from tenonry.plugin.discovery import installed
from tenonry.plugin.kinds import SETTINGS
from tenonry_author_tools.first_party import source_folder
from tenonry_commands.pth_files import acts_at_start

PREFIX = "tenonry"


@dataclass
class Subject:
    """A distribution. `metadata`: file that declares it, `declared`: the one with its entry points. `path`: folders to
    import from, besides those of Python.

    `records`: its plugins, with the group of each in `groups`. `unknown`: entry points in groups that nothing reads.
    `tests`: folder of its tests, if they are there.
    """

    name: str
    version: str
    requires: list[str]
    metadata: Path
    declared: Path
    path: list[Path] = field(default_factory=list)
    records: list[tuple[PluginRecord, Point]] = field(default_factory=list)
    unknown: list[tuple[str, str]] = field(default_factory=list)
    pth: list[Path] = field(default_factory=list)
    tests: Path | None = None
    missing: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"

    def line_of(self, text: str) -> int:
        """First line of the metadata file with this text; 0 if there is none."""
        return _line_of(self.metadata, text)

    def place_of(self, text: str) -> tuple[str, int]:
        """File with the entry points, and its first line with this text, such as a group; 0 if there is none."""
        return str(self.declared), _line_of(self.declared, text)

    def entry_point(self, record: PluginRecord) -> tuple[str, int]:
        """File and line of the entry point of a plugin."""
        return str(self.declared), _line_of(self.declared, record.name, record.target)

    def add_entry_points(
        self, found: Iterable[tuple[str, str, str]], points: Iterable[Point]
    ) -> None:
        """Sort (group, name, target) into plugins, and those that nothing reads."""
        known = {point.group: point for point in points}
        for group, name, target in found:
            if point := known.get(group):
                record = PluginRecord(point.kind, name, target, self.name, self.version)
                self.records.append((record, point))
            elif group != SETTINGS.group and (
                group.startswith(PREFIX) or nearest_group(group, known)
            ):
                self.unknown.append((group, name))


def nearest_group(group: str, known: Iterable[str]) -> str:
    """Group that was probably meant, or ""."""
    return next(iter(difflib.get_close_matches(group, [*known], n=1, cutoff=0.85)), "")


def find_subject(target: str, points: list[Point]) -> Subject:
    """Find the distribution of a folder, a distribution's or a plugin's name. Raises PluginNotFound, ConfigError."""
    folder = Path(target)
    if folder.is_dir() and (folder / "pyproject.toml").is_file():
        return read_folder(folder, points)
    kind, _, name = target.rpartition("/")
    if folder.is_dir() or (kind and kind not in {point.kind for point in points}):
        raise ConfigError(
            f"{target} has no pyproject.toml; give the folder of a package, or a name"
        )
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return read_installed(importlib.metadata.distribution(target), points)
    wanted = [point for point in points if kind in ("", point.kind)]
    owners = {
        each.distribution for point in wanted for each in installed(point) if each.name == name
    }
    if not owners:
        raise PluginNotFound(
            f"no installed plugin or distribution is called '{target}'; `tenonry plugins list` shows all; a "
            "folder needs a pyproject.toml"
        )
    if len(owners) > 1:
        raise ConfigError(
            f"'{target}' is a plugin of {', '.join(sorted(owners))}; give one of these"
        )
    return read_installed(importlib.metadata.distribution(owners.pop()), points)


def read_installed(dist: importlib.metadata.Distribution, points: Iterable[Point]) -> Subject:
    """Read an installed distribution."""
    info = metadata_folder(dist)
    folder = source_folder(dist)
    project = folder and folder / "pyproject.toml"
    files = [Path(str(file.locate())) for file in dist.files or ()]
    subject = Subject(
        dist.name,
        dist.version,
        [*(dist.requires or ())],
        next((file for file in (info / "METADATA", info / "PKG-INFO") if file.is_file()), info),
        project if project and project.is_file() else info / "entry_points.txt",
        pth=[] if folder else [file for file in files if acts_at_start(file)],
        tests=folder / "tests" if folder and (folder / "tests").is_dir() else None,
    )
    found = [(each.group, each.name, _plain(each.value)) for each in dist.entry_points]
    subject.add_entry_points(found, points)
    return subject


def metadata_folder(dist: importlib.metadata.Distribution) -> Path:
    """Folder with the metadata of an installed distribution; installers spell names in several ways."""
    root = Path(str(dist.locate_file("")))
    name = canonicalize_name(dist.name)
    named = [
        folder
        for folder in sorted(root.glob("*-info"))
        if canonicalize_name(folder.stem.partition("-")[0]) == name
    ]
    exact = [folder for folder in named if folder.stem.endswith(f"-{dist.version}")]
    return next(iter((*exact, *named)), root)


def read_folder(folder: Path, points: Iterable[Point]) -> Subject:
    """Read the source of a distribution, installed or not. Raises ConfigError for metadata that cannot be read."""
    file = folder / "pyproject.toml"
    try:
        project: dict[str, Any] = tomllib.loads(file.read_text("utf-8"))["project"]
        name = project["name"]
        groups: dict[str, dict[str, str]] = project.get("entry-points", {})
        found = [
            (group, key, _plain(text))
            for group, names in groups.items()
            for key, text in names.items()
        ]
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be read: {error.strerror}; give the folder of a package"
        ) from error
    except (KeyError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{file} is no metadata of a package: {type(error).__name__} {error}"
        ) from error
    source = folder / "src" if (folder / "src").is_dir() else folder
    wanted = ("version", "description", "requires-python", "readme")
    dynamic = project.get("dynamic", [])
    subject = Subject(
        name,
        project.get("version", "0"),
        [*project.get("dependencies", ())],
        file,
        file,
        path=[source.resolve()],
        pth=[each for each in sorted(source.rglob("*.pth")) if ".venv" not in each.parts],
        tests=folder / "tests" if (folder / "tests").is_dir() else None,
        missing=[key for key in wanted if key not in project and key not in dynamic],
    )
    subject.add_entry_points(found, points)
    return subject


def _line_of(file: Path, *texts: str) -> int:
    """First line of a file with all texts; 0 if there is none, or no such file."""
    if not file.is_file():
        return 0
    lines = enumerate(file.read_text("utf-8", errors="replace").splitlines(), 1)
    return next((number for number, line in lines if all(text in line for text in texts)), 0)


def _plain(value: str) -> str:
    """Target of an entry point, without extras and spaces."""
    return value.partition("[")[0].replace(" ", "")
