"""WK-12: every line, whatever pieces it is written in."""

from __future__ import annotations

import io
import logging
import sys

import pytest

from tenonry.logs import configure_logging
from tenonry_executor_multiproc import prefix
from tenonry_executor_multiproc.prefix import PrefixedStream, prefix_of, prefix_output


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["a\n"], "> a\n"),
        (["a\nb\n"], "> a\n> b\n"),
        (["a", "b", "\n", "c"], "> ab\n|> c"),
        (["a\nb", "c\n"], "> a\n> bc\n"),
        (["", "a\n", "", "b\n", ""], "> a\n> b\n"),
        (["\n", "\n\n"], "> \n> \n> \n"),
        ([""], ""),
    ],
)
def test_lines(pieces, expected):
    target = io.StringIO()
    stream = PrefixedStream(target, "> ")
    assert [stream.write(piece) for piece in pieces] == [len(piece) for piece in pieces]
    whole, _, rest = expected.partition("|")
    assert (
        target.getvalue() == whole
    )  # ranks share the file: half a line would get the other half of another rank's
    stream.flush()
    assert target.getvalue() == whole + rest
    stream.write("on\n")
    assert target.getvalue() == whole + rest + ("on\n" if rest else "> on\n")


def test_it_is_a_stream_for_all_that_use_one():
    target = io.StringIO()
    stream = PrefixedStream(target, "> ")
    print("x", "y", file=stream)
    stream.writelines(["1\n", "2\n"])
    stream.flush()
    assert not stream.isatty()
    assert target.getvalue() == "> x y\n> 1\n> 2\n"


def test_one_write_stays_one():
    written = []

    class Target(io.StringIO):
        def write(self, text):
            written.append(text)
            return len(text)

    PrefixedStream(Target(), "> ").write("a\nb\nc")
    assert written == ["> a\n> b\n"]


def test_colour():
    assert prefix_of("worker 0.1", 7, colour=False) == "(worker 0.1 pid=7) "
    assert prefix_of("worker 0.1", 7, colour=True) == "\x1b[1;36m(worker 0.1 pid=7)\x1b[0m "


@pytest.mark.parametrize(
    ("terminal", "no_colour", "expected"), [(True, False, True), (True, True, False), (False,) * 3]
)
def test_streams_and_log_are_replaced(monkeypatch, terminal, no_colour, expected):
    class Target(io.StringIO):
        def isatty(self):
            return terminal

    out, err = Target(), Target()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_colour:
        monkeypatch.setenv("NO_COLOR", "1")
    log = logging.getLogger("tenonry")
    monkeypatch.setattr(log, "handlers", [])
    monkeypatch.setattr(log, "propagate", log.propagate)
    monkeypatch.setattr(log, "level", log.level)
    configure_logging("worker 0.0")
    prefix_output("worker 0.0")
    print("hello")
    log.getChild("x").error("bad")
    mark = prefix_of("worker 0.0", prefix.os.getpid(), colour=expected)
    assert out.getvalue() == f"{mark}hello\n"
    assert err.getvalue().startswith(f"{mark}E ")
    assert err.getvalue().endswith(" bad\n")
