"""The command, with its flags."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from tenonry.cli import COMMANDS
from tenonry.errors import ConfigError
from tenonry.plugin.manager import resolve_point

from v1_command.plugin import V1Command


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command = V1Command()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_the_command_line_finds_it() -> None:
    assert resolve_point(COMMANDS, "v1_command.plugin:V1Command")[0] is V1Command


def test_it_counts_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one\n\ntwo\n", "utf-8")
    assert run(str(file)) == 0
    assert capsys.readouterr().out == "2\n"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt"):
        run(str(tmp_path / "none.txt"))
