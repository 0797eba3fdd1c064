"""Set up this repository and work with it: `dev.py` beside this folder is the command."""

from __future__ import annotations

from dev.environment import LINKING, fingerprint, installed
from dev.paths import PYTHON, ROOT, STAMP, VENV
from dev.tree import distributions

__all__ = [
    "LINKING",
    "PYTHON",
    "ROOT",
    "STAMP",
    "VENV",
    "distributions",
    "fingerprint",
    "installed",
]
