"""A run of the tier `unit` fails a test that starts a process; other runs do not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from house import ROOT

pytestmark = pytest.mark.integration
STARTS = 'import subprocess\ndef test_it():\n    subprocess.run(["true"], check=True)\n'


@pytest.mark.parametrize(("marks", "status"), [("not integration", 1), ("not nightly", 0)])
def test_a_test_that_starts_a_process_fails_in_the_tier_unit(
    marks: str, status: int, tmp_path: Path
):
    shutil.copy(ROOT / "conftest.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_starts.py").write_text(STARTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", marks]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("mark it @pytest.mark.integration" in done.stdout) == bool(status)
