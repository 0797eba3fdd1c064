"""Shared fixtures of this folder."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True)
def _frozen_objects_stay(monkeypatch):
    """Modules and tests were frozen before the first test; looking for garbage among them takes half a second."""
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
