"""Frozen packages, one per kind, written against one interface version: `vN/packages/KIND`, never changed again."""

from __future__ import annotations

import hashlib
import shutil
import tomllib
from pathlib import Path
from typing import Any

from tenonry_testkit.plugins import TmpPlugins

ROOT = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in ROOT.glob("v*") if folder.is_dir())
CACHES = shutil.ignore_patterns("__pycache__", "*.pyc")


def packages(version: str) -> dict[str, Path]:
    """Kind → folder of its package."""
    return {folder.name: folder for folder in sorted((ROOT / version / "packages").iterdir())}


def metadata(folder: Path) -> dict[str, Any]:
    """`[project]` of a package."""
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))
    return project["project"]


def install(site: TmpPlugins, version: str) -> None:
    """Install all packages of a version, with their entry points and requirements."""
    for folder in packages(version).values():
        project = metadata(folder)
        shutil.copytree(folder / "src", site.folder, ignore=CACHES, dirs_exist_ok=True)
        site.distribution(
            project["name"],
            project["version"],
            requires=project["dependencies"],
            entry_points=project["entry-points"],
        )


def hashes(version: str) -> dict[str, str]:
    """Path → sha256 of each file of a version."""
    files = [file for file in sorted((ROOT / version).rglob("*")) if file.is_file()]
    return {
        file.relative_to(ROOT).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.suffix != ".pyc"
    }


def recorded_hashes(version: str) -> dict[str, str]:
    """As `hashes`, when the version was frozen."""
    lines = (ROOT / f"{version}.sha256").read_text("utf-8").splitlines()
    return {path: digest for digest, path in (line.split("  ") for line in lines)}
