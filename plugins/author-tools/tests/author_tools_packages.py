"""Packages of all kinds for the tests of the commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple


def name_of(kind: str) -> str:
    """Name of the new plugin of a kind."""
    return f"my-{kind.replace('_', '-')}"


class NewPackages(NamedTuple):
    """`sources`: a folder per kind. `environment`: of processes that see all packages installed."""

    sources: dict[str, Path]
    environment: dict[str, str]


def install(sources: Iterable[Path], site: Path) -> None:
    """Install packages without their requirements, which this environment has."""
    options = (
        "-q --no-build-isolation --no-deps --no-index --no-compile --disable-pip-version-check"
    )
    command = [sys.executable, "-m", "pip", "install", *options.split(), "--target", str(site)]
    subprocess.run([*command, *map(str, sources)], check=True)


def check(source: Path, environment: dict[str, str]) -> str:
    """Output of `tenonry plugins check`."""
    done = subprocess.run(
        [sys.executable, "-m", "tenonry", "plugins", "check", str(source)],
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return done.stdout
