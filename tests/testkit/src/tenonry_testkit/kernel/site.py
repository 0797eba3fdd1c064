"""Temporary distributions: real metadata in a folder on sys.path, like pip's. Test process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path


class Site:
    """A folder on sys.path. `install` writes the files of a `pip install`: modules, METADATA, entry points, RECORD."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        name: str,
        *,
        version: str = "1.0",
        requires: Iterable[str] = ("tenonry",),
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        modules: Mapping[str, str] | None = None,
        summary: str = "",
    ) -> None:
        """`entry_points`: group → name → target. `modules`: file name → source."""
        info = self.folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Summary: {summary}"] if summary else []
        lines += [f"Requires-Dist: {text}" for text in requires]
        (info / "METADATA").write_text("\n".join(lines) + "\n", "utf-8")
        points = ""
        for group, names in (entry_points or {}).items():
            points += (
                f"[{group}]\n"
                + "".join(f"{key} = {target}\n" for key, target in names.items())
                + "\n"
            )
        (info / "entry_points.txt").write_text(points, "utf-8")
        for file_name, source in (modules or {}).items():
            file = self.folder / file_name
            file.parent.mkdir(exist_ok=True)
            file.write_text(source, "utf-8")
        record = [f"{info.name}/METADATA,,", *(f"{file_name},," for file_name in modules or {})]
        (info / "RECORD").write_text("\n".join(record) + "\n", "utf-8")
        importlib.invalidate_caches()


def forget_modules(folder: Path) -> None:
    """Drop modules imported from `folder`, so that the next test may use the same names."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
