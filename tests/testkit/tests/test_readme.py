"""The README's tutorial works as described."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tenonry_testkit.processes import run_cli
from tenonry_testkit.scheduler import SchedulerContract

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"```python\n# (\S+)\n(.*?)```", README, re.DOTALL)
QUICK = "accepts or starves or in_flight or gone"


@pytest.fixture
def afternoon(tmp_path):
    """Run the tests of the README, in a folder of their own, after some change."""

    def run(test_block, without=""):
        for name, source in (BLOCKS[0], BLOCKS[test_block]):
            (tmp_path / name).write_text(
                source.replace(without, "") if without else source, "utf-8"
            )
        arguments = ["-q", "-p", "no:cacheprovider", "-k", QUICK, "test_my_scheduler.py"]
        command = (sys.executable, "-m", "pytest")
        return run_cli(
            *arguments, command=command, cwd=tmp_path, timeout=28, env={"PYTHONPATH": str(tmp_path)}
        )

    return run


def test_blocks_are_the_scheduler_its_test_and_a_repetition():
    assert [name for name, _ in BLOCKS] == [
        "my_scheduler.py",
        "test_my_scheduler.py",
        "test_my_scheduler.py",
    ]


@pytest.mark.integration
def test_scheduler_passes_with_a_test_of_its_own(afternoon):
    done = afternoon(test_block=2).check()
    assert "4 passed" in done.stdout, done.stdout


@pytest.mark.integration
def test_claim_to_be_free_of_starvation_is_found_out(afternoon):
    done = afternoon(test_block=1, without="    starvation_free = False")
    assert done.returncode == 1
    assert "FAILED test_my_scheduler.py::TestShortFirst::test_no_request_starves" in done.stdout
    assert re.search(r"waited while \d+ later ones came and ended", done.stdout)


def test_readme_names_tests_that_exist():
    named = {name for name in re.findall(r"`(test_[a-z_]+)", README) if not name.endswith("_")}
    known = {name for name in dir(SchedulerContract) if name.startswith("test_")}
    assert named - known <= {"test_my_scheduler"}
