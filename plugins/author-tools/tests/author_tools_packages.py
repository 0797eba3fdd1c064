"""Packages of all kinds for the tests of the commands."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


def name_of(kind: str) -> str:
    """Name of the new plugin of a kind."""
    return f"my-{kind.replace('_', '-')}"


class NewPackages(NamedTuple):
    """`sources`: a folder per kind. `environment`: of processes that see all packages installed."""

    sources: dict[str, Path]
    environment: dict[str, str]
