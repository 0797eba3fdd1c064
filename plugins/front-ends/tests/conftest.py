"""Fixtures for front ends: a clean environment."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _clean(no_outside_settings: None) -> None:
    """For every test."""
