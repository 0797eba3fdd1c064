"""The tables of `docs/explanation/steps.md` match a real run."""

from __future__ import annotations

from pathlib import Path

import pytest
from step_table import run, table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "steps.md"


@pytest.mark.parametrize("depth", [1, 2])
def test_the_page_shows_what_a_run_gives(depth):
    assert f"```text\n{table(run(depth))}```" in PAGE.read_text(encoding="utf-8")
