"""Fixtures for the commands: a clean environment, throw-away distributions beside those installed, the model `fake`."""

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
def site(tmp_path: Path) -> Iterator[TmpPlugins]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        yield plugins


@pytest.fixture
def fake_model(site: TmpPlugins) -> TmpPlugins:
    """The model `fake` is known to whatever finds the folder of `site`."""
    site.distribution("fake-model", entry_points={"tenonry.plugins": {"fake-model": "tenonry_testkit.fakes.model"}})
    return site
