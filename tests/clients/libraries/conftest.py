"""Finds the helpers of the integration tests, which start servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "integration")]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """litellm asks the network for prices when it is imported, and waits between its attempts."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
