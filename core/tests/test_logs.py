"""Logging of our own processes: one readable line, on standard error, with the process named."""

from __future__ import annotations

import logging
from collections.abc import Iterator

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
