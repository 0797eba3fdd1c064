"""Logging of our own processes: one readable line, on standard error, with the process named."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenonry.logs import LEVEL_VARIABLE, configure_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger("tenonry")
    before = root.handlers[:], root.level, root.propagate
    yield
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


def test_a_line_names_level_time_process_and_message(capsys):
    configure_logging("engine 3")
    logging.getLogger("tenonry.engine.core").warning("all is %s", "well")
    line = capsys.readouterr().err
    assert line.startswith("W ")
    assert line.endswith("[engine 3] all is well\n")


def test_configuring_again_replaces_and_does_not_repeat(capsys):
    configure_logging("one")
    configure_logging("two")
    logging.getLogger("tenonry").info("hello")
    assert capsys.readouterr().err.count("hello") == 1


def test_other_libraries_are_left_alone(capsys):
    before = logging.getLogger().handlers[:]
    configure_logging("one")
    assert logging.getLogger().handlers == before
    assert not logging.getLogger("tenonry").propagate


@pytest.mark.parametrize(
    ("value", "level"),
    [(None, "INFO"), ("debug", "DEBUG"), ("WARNING", "WARNING"), ("loud", "INFO"), ("", "INFO")],
)
def test_the_level_comes_from_the_environment(monkeypatch, value, level):
    if value is not None:
        monkeypatch.setenv(LEVEL_VARIABLE, value)
    configure_logging("one")
    assert logging.getLevelName(logging.getLogger("tenonry").level) == level


REPORT = """
import json, os, socket, subprocess, sys
{before}
from tenonry.logs import open_standard_streams
open_standard_streams()
with socket.socket() as own:
    number = own.fileno()
print("nobody reads this")
sys.stderr.write("nor this")
child = "import json, os, sys; os.fstat(1); os.fstat(2); sys.exit(len(sys.stdin.read()))"
status = subprocess.run([sys.executable, "-c", child]).returncode
open(sys.argv[1], "w").write(json.dumps([number, status, sys.stderr.isatty()]))
"""


@pytest.mark.integration
class TestStandardStreams:
    """A socket that got the number of a closed one would be inherited, written to, or closed by a child."""

    @pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
    def test_the_null_device_takes_the_place_of_closed_ones(self, tmp_path, closed):
        number, status, _ = self.run(tmp_path, closed=closed)
        assert number > 2
        assert status == 0

    def test_one_that_the_program_closed_is_open_again(self, tmp_path):
        number, status, _ = self.run(tmp_path, before="sys.stdout.close()")
        assert number > 2
        assert status == 0

    def test_a_number_that_the_program_uses_is_left_to_it(self, tmp_path):
        number, _, is_terminal = self.run(
            tmp_path, before="own_0 = socket.socket(); own_2 = socket.socket()", closed="<&- 2>&-"
        )
        assert number > 2
        assert is_terminal is False

    def run(self, folder: Path, *, before: str = "", closed: str = "") -> list[int]:
        code, file = REPORT.format(before=before), str(folder / "report")
        shell = ["sh", "-c", f'"$@" {closed or "</dev/null"}', "sh", sys.executable, "-c"]
        subprocess.run([*shell, code, file], check=True, stdin=subprocess.DEVNULL, timeout=25)
        return json.loads((folder / "report").read_text("utf-8"))


@pytest.mark.parametrize("variable", ["ascii", "latin-1"])
@pytest.mark.integration
def test_characters_that_standard_output_lacks_are_escaped(variable):
    code = "from tenonry.logs import configure_logging; configure_logging('one'); print('a…é')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONIOENCODING": variable},
        capture_output=True,
        check=True,
        timeout=25,
    )
    assert done.stdout.decode(variable) == (
        "a\\u2026\\xe9\n" if variable == "ascii" else "a\\u2026é\n"
    )
