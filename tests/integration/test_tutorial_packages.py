"""The package of a tutorial is what its page makes: the scaffold, with the code of the page."""

from __future__ import annotations

import contextlib
import io

from page_reader import BLOCK, ROOT

from tenonry.cli import main
from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.scheduler import SchedulerContract

PAGE = ROOT / "docs" / "tutorial" / "your-scheduler.md"
PACKAGE = PAGE.with_suffix("")
CODE = "src/short_prompts/plugin.py"
OURS = {CODE, "trace.jsonl"}
SUMMARY = ("that runs few requests at once", "that starts short prompts first")


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_text("utf-8")
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_package_is_the_scaffold_but_for_its_code(tmp_path):
    made = tmp_path / "short-prompts"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plugins", "new", "scheduler", "short-prompts", "--into", str(made)]) == 0
    scaffold, ours = files(made), files(PACKAGE)
    assert ours.keys() - OURS == scaffold.keys() - OURS
    for name in scaffold.keys() - OURS:
        expected = scaffold[name].replace(*SUMMARY).replace(" --scheduler-option most=2", "")
        assert ours[name] == expected, name


def test_code_is_that_of_the_page():
    blocks = [text for _, text in BLOCK.findall(PAGE.read_text("utf-8"))]
    head = f"# short-prompts/{CODE}\n"
    (code,) = (text.removeprefix(head) for text in blocks if text.startswith(head))
    assert code == (PACKAGE / CODE).read_text("utf-8")


def test_scheduler_passes_its_suite():
    class Suite(SchedulerContract):
        scheduler = f"{PACKAGE / CODE}:ShortPrompts"
        effort = 0.05

    assert list(failing_tests(Suite)) == []
