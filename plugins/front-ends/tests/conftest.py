"""Fixtures for front ends: a clean environment, and the model `fake`, known to every front end of this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry_testkit.plugins import TmpPlugins

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have TENONRY_… variables of their own."""
    for name in list(os.environ):
        if name.startswith("TENONRY_"):
            monkeypatch.delenv(name)


@pytest.fixture
def fake_model(tmp_path: Path) -> Iterator[None]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        points = {"tenonry.plugins": {"fake-model": "tenonry_testkit.fakes.model"}}
        plugins.distribution("fake-model", entry_points=points)
        yield
