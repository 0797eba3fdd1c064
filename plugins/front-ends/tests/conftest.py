"""Fixtures for front ends: a clean environment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""
