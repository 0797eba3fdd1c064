"""Fixtures for the kernel's tests: a clean environment, throw-away distributions, and nothing left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry_testkit.kernel.site import Site, forget_modules


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder in front of sys.path, to install throw-away distributions into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    forget_modules(folder)
