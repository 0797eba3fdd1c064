"""Fixtures for front ends: a clean environment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tenonry_testkit.kernel.served import Served, serving
from tenonry_testkit.plugins import TmpPlugins

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""


@pytest.fixture
def serve(fake_model_site: TmpPlugins) -> Iterator[Callable[..., Served]]:
    """Start an engine of the test's own."""
    with serving() as start:
        yield start
