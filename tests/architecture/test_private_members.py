"""Tests read private members of other objects in fewer and fewer places: a bound that only falls, found by ruff."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from house import ROOT, distributions

pytestmark = pytest.mark.integration

MAX_PLACES = 130  # it only falls


def places(folders: list[Path]) -> list[str]:
    """Return each access to a private member of another object in the Python files of `folders`."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select=SLF001"]
    ended = subprocess.run(
        [*command, "--output-format=json", *map(str, folders)],
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert ended.returncode in {0, 1}, ended.stderr
    return [
        f"{found['filename']}:{found['location']['row']}: {found['message']}"
        for found in json.loads(ended.stdout)
    ]


def folders_of_tests() -> list[Path]:
    """Return the folders of all tests: those of the distributions, and those of the whole tree."""
    own = [dist.folder / "tests" for dist in distributions()]
    whole = [
        path for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "testkit"
    ]
    return [*(folder for folder in own if folder.is_dir()), *whole]


def test_tests_read_private_members_in_no_more_places():
    found = places(folders_of_tests())
    assert 0 < len(found) <= MAX_PLACES, "\n".join(found)


def test_a_private_member_of_another_object_is_found(tmp_path: Path):
    file = tmp_path / "reads.py"
    file.write_text("class A:\n    def f(self, other):\n        return self._x, other._x\n")
    (found,) = places([tmp_path])
    assert found.startswith(f"{file}:3: ")
