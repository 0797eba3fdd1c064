"""The figures of the page on scheduling policies are those of the policies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "how-to" / "policy_table.py"


@pytest.mark.nightly
def test_table_is_that_of_the_policies():
    checked = subprocess.run([sys.executable, SCRIPT, "--check"], check=False)
    assert checked.returncode == 0, f"run {SCRIPT}"
