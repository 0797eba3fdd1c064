"""Fixtures of the tests of decision records."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))
from decision_runs import Run, busy_run


@pytest.fixture
def busy() -> Run:
    return busy_run()
