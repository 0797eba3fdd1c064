"""A run of the tier `unit` fails a test that starts a process; later cases of long parametrisations are nightly."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house import ROOT

pytestmark = pytest.mark.integration
CASES = """
import pytest

NIGHTLY = pytest.param(0, marks=pytest.mark.nightly)

@pytest.mark.nightly_after(2)
@pytest.mark.parametrize("number", [NIGHTLY, 1, 2, 3, 4])
def test_numbers(number): pass

@pytest.mark.nightly_after(2)
def test_no_case(): pass
"""
STARTS = 'import subprocess\ndef test_it():\n    subprocess.run(["true"], check=True)\n'


@pytest.mark.parametrize("mark", ["", "integration", "slow", "nightly"])
def test_a_test_of_the_tier_unit_that_starts_a_process_fails(mark: str, tmp_path: Path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    marked = f"import pytest\npytestmark = pytest.mark.{mark}\n" if mark else ""
    (tmp_path / "test_starts.py").write_text(marked + STARTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == (not mark), done.stdout + done.stderr
    assert ("mark it @pytest.mark.integration" in done.stdout) == (not mark)


def test_later_cases_are_nightly(tmp_path: Path):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_cases.py").write_text(CASES)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not nightly"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    names = [line.split("::")[1] for line in done.stdout.splitlines() if "::" in line]
    assert names == ["test_numbers[1]", "test_numbers[2]", "test_no_case"]
