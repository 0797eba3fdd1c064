"""Distributions of this project, and those of others with plugins, from metadata alone. Command line."""

from __future__ import annotations

import importlib.metadata
import json
import operator
from collections.abc import Container, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tenonry.plugin.discovery import excluded

KERNEL = "tenonry"
# Distributions of this project that `tenonry[standard]` does not name.
OTHERS = {"testkit", "executor-ray", "failpoints", "grammar-xgrammar"}
LINKS = ("_editable_impl_", "__editable__")  # files by which installers link a source folder


def first_party() -> set[str]:
    """Distributions of this project: by the kernel's metadata, and those that are linked from its checkout.

    A checkout may have newer ones than the metadata of its kernel, which are as old as its last installation.
    """
    named = {Requirement(line).name for line in importlib.metadata.requires(KERNEL) or ()}
    own = {canonicalize_name(name) for name in named if name.startswith(f"{KERNEL}-")}
    own |= {KERNEL} | {f"{KERNEL}-{name}" for name in OTHERS}
    core = source_folder(importlib.metadata.distribution(KERNEL))
    if core is None:
        return own
    checkout = core.parent
    for name, dist in distributions():
        if name not in own and name.startswith(f"{KERNEL}-"):
            folder = source_folder(dist)
            if folder is not None and folder.is_relative_to(checkout):
                own.add(name)
    return own


def third_party(groups: Container[str] = ()) -> dict[str, importlib.metadata.Distribution]:
    """Distributions of others with entry points for this project, or in `groups`, by name; no excluded ones."""
    own = {*first_party(), *map(canonicalize_name, excluded())}
    prefix = f"{KERNEL}."
    return {
        name: dist
        for name, dist in sorted(distributions(), key=operator.itemgetter(0))
        if name not in own
        and any(each.group.startswith(prefix) or each.group in groups for each in dist.entry_points)
    }


def distributions() -> Iterator[tuple[str, importlib.metadata.Distribution]]:
    """The first copy of each, by its normalised name; one that is being removed has none."""
    known = set()
    for dist in importlib.metadata.distributions():
        name = canonicalize_name(dist.metadata["Name"] or "")
        if name and name not in known:
            known.add(name)
            yield name, dist


def source_folder(dist: importlib.metadata.Distribution) -> Path | None:
    """Folder with the pyproject.toml of an editable installation; None for any other."""
    origin = json.loads(dist.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable", False):
        return Path(origin["url"].removeprefix("file://"))
    for file in dist.files or ():
        if file.suffix == ".pth" and file.name.startswith(LINKS):
            folder = Path(Path(str(file.locate())).read_text("utf-8").strip())
            for parent in (folder, *folder.parents[:1]):
                if (parent / "pyproject.toml").is_file():
                    return parent
    return None
