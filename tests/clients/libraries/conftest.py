"""Finds the helpers of the integration tests, which start servers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "integration")]
