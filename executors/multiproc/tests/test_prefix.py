"""WK-12: every line of a rank has its name and pid, also one that a C library writes."""

from __future__ import annotations

import logging
import os
import pty
from types import SimpleNamespace
from typing import Any

import pytest

from tenonry.logs import configure_logging
from tenonry_executor_multiproc import prefix
from tenonry_executor_multiproc.prefix import prefix_of, shorten_log

RANK: Any = SimpleNamespace(name="worker 0.1", pid=7)


def test_without_a_terminal_it_has_no_colour(monkeypatch, tmp_path):
    with (tmp_path / "log").open("w") as file:
        monkeypatch.setattr(prefix, "TARGETS", [1, file.fileno()])
        assert prefix_of(RANK) == "(worker 0.1 pid=7) "


@pytest.mark.parametrize(
    ("no_colour", "expected"),
    [(False, "\x1b[1;36m(worker 0.1 pid=7)\x1b[0m "), (True, "(worker 0.1 pid=7) ")],
)
def test_colour_on_a_terminal(monkeypatch, no_colour, expected):
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    ours, terminal = pty.openpty()
    monkeypatch.setattr(prefix, "TARGETS", [1, terminal])
    try:
        assert prefix_of(RANK) == expected
    finally:
        os.close(ours)
        os.close(terminal)


def test_the_log_leaves_the_name_to_the_prefix(monkeypatch, capsys):
    log = logging.getLogger("tenonry")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", log.propagate)
    monkeypatch.setattr(log, "level", log.level)
    configure_logging("worker 0.0")
    shorten_log()
    log.getChild("x").error("bad")
    line = capsys.readouterr().err
    assert line.startswith("E ")
    assert line.endswith(" bad\n")
    assert "worker" not in line


@pytest.mark.integration
def test_ranks_write_to_their_descriptors(build, capfd):
    built = build()
    built.start().call("write", ["from C"])
    pids = built.pids
    built.executor.shutdown()
    out, err = capfd.readouterr()
    marks = [f"(worker 0.{rank} pid={pid}) " for rank, pid in enumerate(pids)]
    assert sorted(out.splitlines()) == [f"{mark}from C" for mark in marks]
    assert {f"{mark}from C" for mark in marks} <= set(err.splitlines())
