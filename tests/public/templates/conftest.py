"""Folder of public templates, if configured, and the modules next to the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

VARIABLE = "TENONRY_PUBLIC_TEMPLATES"


@pytest.fixture(scope="session")
def public_templates() -> dict[str, str]:
    """Name to source of the templates in the folder that the environment names."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder of public chat templates (*.jinja)")
    found = sorted(Path(folder).rglob("*.jinja*"))
    return {path.name: path.read_text(encoding="utf-8") for path in found}
