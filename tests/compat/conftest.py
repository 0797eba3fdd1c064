"""Packages of frozen interface versions, installed for one test; their own tests are run by the tests here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from frozen import install

from tenonry_testkit.plugins import TmpPlugins

collect_ignore_glob = ["v*/*"]


@pytest.fixture
def frozen_site(tmp_path: Path, no_outside_settings: None) -> Iterator[TmpPlugins]:
    """A folder on the path with all frozen packages of version 1, and the model `fake`."""
    with TmpPlugins(tmp_path / "site", see_installed=True) as site:
        install(site, "v1")
        site.distribution(
            "fake-model",
            entry_points={"tenonry.plugins": {"fake-model": "tenonry_testkit.fakes.model"}},
        )
        yield site
