"""Fixtures for the kernel's tests: a clean environment, throw-away distributions, and nothing left behind."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from kernel_site import Site, forget_modules


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have TENONRY_… variables of their own."""
    for name in list(os.environ):
        if name.startswith("TENONRY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty folder in front of sys.path, to install throw-away distributions into."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    forget_modules(folder)


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail a test that leaves a child process or a socket folder behind."""
    before = _children(), _run_folders()
    yield
    psutil.wait_procs(_children() - before[0], timeout=3)
    assert _children() - before[0] == set()
    assert _run_folders() - before[1] == set()


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def _run_folders() -> set[str]:
    return {entry.path for entry in os.scandir(tempfile.gettempdir()) if entry.name.startswith("tenonry-")}
