"""Fixtures for the commands: a clean environment, and temporary distributions in addition to those installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry_testkit.plugins import TmpPlugins


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TmpPlugins]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        yield plugins
