"""Contents of the tree, read from its files: the distributions, their metadata, their sources.

Used by the tests in this folder and by `declared_imports.py`; imports nothing of tenonry, so that it can speak about a
tree that does not work.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# What `tenonry[standard]` leaves out: what is for tests, and what needs Ray or triton, which are larger than the rest.
NOT_STANDARD = {
    "tenonry-testkit",
    "tenonry-executor-ray",
    "tenonry-failpoints",
    "tenonry-grammar-xgrammar",
}


@dataclass(frozen=True)
class Distribution:
    """One folder with a pyproject.toml: a pip-installable distribution."""

    folder: Path

    @cached_property
    def pyproject(self) -> dict[str, Any]:
        return tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))

    @property
    def project(self) -> dict[str, Any]:
        """The `[project]` table."""
        return self.pyproject["project"]

    @property
    def name(self) -> str:
        return self.project["name"]

    @property
    def import_name(self) -> str:
        """Flat names: the distribution's name with underscores."""
        return self.name.replace("-", "_")

    @property
    def package(self) -> Path:
        return self.folder / "src" / self.import_name

    @property
    def sources(self) -> list[Path]:
        return sorted((self.folder / "src").rglob("*.py"))

    @property
    def tests(self) -> list[Path]:
        return sorted((self.folder / "tests").rglob("*.py"))

    @property
    def entry_points(self) -> dict[tuple[str, str], str]:
        """`(group, name)` to `module` or `module:attribute`."""
        groups = self.project.get("entry-points", {})
        return {
            (group, name): value for group, names in groups.items() for name, value in names.items()
        }


def distributions(root: Path = ROOT) -> list[Distribution]:
    """Return every distribution of the tree at `root`, the kernel first."""
    files = [*root.glob("core/pyproject.toml"), *sorted(root.glob("[!.]*/*/pyproject.toml"))]
    return [Distribution(file.parent) for file in files]
