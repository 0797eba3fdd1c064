"""Installed plugins, read from metadata without imports. Any process that starts engines."""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.metadata
import logging
import operator
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from stevedore.named import NamedExtensionManager

from tenonry.config import PluginChoice, nearest
from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.info import PluginRecord
from tenonry.plugin.kinds import UNNAMED
from tenonry.point import Point
from tenonry.version import __version__

EXCLUDED = "TENONRY_EXCLUDED_DISTRIBUTIONS"
EXPERIMENTAL = "TENONRY_ALLOW_EXPERIMENTAL_PLUGINS"
Function = TypeVar("Function", bound=Callable[..., Any])

logger = logging.getLogger(__name__)


def _cached(function: Function) -> Function:
    """Cache until a distribution is added or removed, which changes the time of a folder of `sys.path`, or the
    exclusions change.
    """
    remembered = functools.lru_cache(256)(lambda _, *arguments: function(*arguments))

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        times = []
        for folder in sys.path:
            with contextlib.suppress(OSError):  # missing or unreadable
                times.append((folder, os.stat(folder).st_mtime_ns))  # noqa: PTH116 - quicker, and asked for often
        return remembered((*excluded(), *times), *arguments)

    return call  # type: ignore[return-value]  # it takes what `function` takes


def excluded() -> list[str]:
    """Distributions without effect in this process and its children, by the variable `EXCLUDED`; none is imported."""
    return os.environ.get(EXCLUDED, "").split(",")


@_cached
def _entry_points() -> Any:
    """The entry points of all groups. Reading them opens a file per distribution, and a start needs them dozens of
    times.
    """
    return importlib.metadata.entry_points()


class _Extensions(NamedExtensionManager):  # type: ignore[type-arg]  # not generic in every release
    """stevedore without its cache on disk, which drops distributions and hides a plugin installed within the last two
    minutes.
    """

    def list_entry_points(self) -> Any:
        return _entry_points().select(group=self.namespace)


# Metadata of a distribution; each access would parse its file again.
_metadata = functools.lru_cache(256)(operator.attrgetter("metadata"))


@_cached
def installed(point: Point) -> tuple[PluginRecord, ...]:
    """All entry points of a point, by name, without imports."""
    found = set()
    for entry in _Extensions(point.group, []).list_entry_points():
        metadata = _metadata(entry.dist)
        # One without a name is being removed.
        if "Name" in metadata and metadata["Name"] not in excluded():
            target = entry.value.partition("[")[0].replace(" ", "")
            found.add((entry.name, target, metadata["Name"], metadata["Version"]))
    return tuple(PluginRecord(point.kind, *fields) for fields in sorted(found))


def find_entry_point(point: Point, name: str) -> PluginRecord | None:
    """Return the plugin of this name, or None. Raises an error naming two suitable distributions with the name."""
    matches = [entry for entry in installed(point) if entry.name == name]
    if len(matches) > 1:
        matches = [entry for entry in matches if _fits(entry)] or matches
    if len(matches) > 1:
        claims = " and ".join(
            f"{entry.distribution} {entry.version} ({entry.target})" for entry in matches
        )
        text = f"{point.kind} '{name}' is claimed twice, by {claims}; uninstall one of them"
        if point not in UNNAMED:
            text += " or give the class as module:Class"
        raise PluginError(text)
    return matches[0] if matches else None


def _fits(entry: PluginRecord) -> bool:
    try:
        check_requirements(entry.distribution)
    except PluginIncompatible as error:
        logger.warning("skipped %s: %s", entry.label(), error)
        return False
    return True


def not_found(point: Point, name: str) -> PluginNotFound:
    """Error for an unknown name: installed plugins, the nearest spelling, and the distribution to install."""
    entries = installed(point)
    listing = [f"{entry.name} ({entry.distribution} {entry.version})" for entry in entries]
    text = f"no {point.kind.replace('_', ' ')} is called '{name}'; installed: {', '.join(listing) or 'none'}"
    for group in misspelt_groups([point]):
        for entry in installed(Point(group, kind=point.kind)):
            if entry.name == name:
                text += f"; {entry.distribution} {entry.version} names it in the group '{group}': write '{point.group}'"
    if near := nearest(name, [entry.name for entry in entries]):
        text += near
    if package := point.provider.get(name):
        text += f"; it comes with: pip install {package}"
    elif not near:
        text += "; give an installed name, module:Class or path.py:Class"
    return PluginNotFound(text)


def misspelt_groups(points: Iterable[Point]) -> dict[str, str]:
    """Misspelt entry-point groups: group → probable group of one of `points`."""
    known = {point.group for point in points}
    return {
        group: probable
        for group in sorted(_entry_points().groups - known)
        for probable in difflib.get_close_matches(group, known, n=1, cutoff=0.85)
    }


def distribution_of_module(module: str) -> tuple[str, str]:
    """Return (name, version) of the distribution of a module, or ("", "") for loose files."""
    top = module.partition(".")[0]
    try:  # most distributions have the name of their module, with dashes
        dist = importlib.metadata.distribution(top)
    except (ImportError, ValueError):  # there is none, or the name is empty
        name = _packages().get(top, [""])[0]
        return name, importlib.metadata.version(name) if name else ""
    return dist.name, dist.version


# Module → distributions, from all file lists.
_packages = _cached(importlib.metadata.packages_distributions)


@_cached
def check_requirements(distribution: str) -> None:
    """Compare the distribution's requirement of the kernel with the running one, before any import.

    Every process imports the first copy on `sys.path`; more than one is reported.
    """
    if not distribution:
        return
    if distribution in excluded():
        raise PluginIncompatible(f"{distribution} is excluded, by the variable {EXCLUDED}")
    copies = importlib.metadata.distributions(name=distribution)
    folders = list(dict.fromkeys(str(copy.locate_file("")) for copy in copies))
    if len(folders) > 1:
        logger.warning("using the first of several copies of %s: %s", distribution, folders)
    for text in importlib.metadata.requires(distribution) or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue  # pip installed it; a spelling known only to pip is ignored
        is_kernel = canonicalize_name(requirement.name) == "tenonry"
        applies = requirement.marker is None or requirement.marker.evaluate()
        is_met = requirement.specifier.contains(__version__, prereleases=True)
        if is_kernel and applies and not is_met:
            raise PluginIncompatible(
                f"{distribution} {importlib.metadata.version(distribution)} needs {text}, but this is tenonry "
                f"{__version__}; install a release of {distribution} made for it, or change tenonry"
            )


def check_tier(point: Point, record: PluginRecord, *, allow_experimental: bool) -> None:
    """Raise PluginError for a third-party plugin on an alpha point without consent.

    Consent is `allow_experimental`, or the variable `EXPERIMENTAL` where no configuration is read.
    """
    is_own = record.distribution in ("tenonry", *point.provider.values())
    has_consent = allow_experimental or os.environ.get(EXPERIMENTAL) == "1"
    if point.tier == "alpha" and not is_own and not has_consent:
        raise PluginError(
            f"{record.label()} is a third-party plugin of the alpha point {point.group}, which may change with any "
            "release; allow it with --allow-experimental-plugins, or leave it out"
        )


def file_record(kind: str, choice: PluginChoice, path: str, attribute: str) -> PluginRecord:
    """Return the record of a class in a loose file. Equal texts are one module, independent of their location."""
    try:
        source = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PluginError(
            f"{kind} '{choice.name}': file {path} cannot be read, or is not UTF-8: {error}"
        ) from None
    return PluginRecord(
        kind,
        choice.name,
        target=f"tenonry_file_{hashlib.sha256(source.encode()).hexdigest()[:16]}:{attribute}",
        source=source,
        path=str(Path(path).resolve()),
        options=choice.options,
    )
