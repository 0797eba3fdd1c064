"""Puts `(worker 0.1 pid=4711) ` before every line that a rank's process writes. The rank's process.

It sees what Python writes; a C library that writes to the file descriptor itself goes past it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterable
from typing import Any, TextIO

CYAN_BOLD, RESET = "\x1b[1;36m", "\x1b[0m"


class PrefixedStream:
    """A text stream with a prefix before each line. One write stays one, so ranks do not cut each other's lines."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream, self._prefix = stream, prefix
        self._at_start = True

    def write(self, text: str) -> int:
        """Returns the length of `text`, as any stream does."""
        if not text:
            return 0
        ends = text.endswith("\n")
        body = text[:-1] if ends else text
        first = self._prefix if self._at_start else ""
        self._stream.write(first + body.replace("\n", "\n" + self._prefix) + ("\n" if ends else ""))
        self._at_start = ends
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_of(name: str, pid: int, *, colour: bool) -> str:
    """The words before a line, cyan and bold if `colour`."""
    words = f"({name} pid={pid})"
    return f"{CYAN_BOLD}{words}{RESET} " if colour else f"{words} "


def prefix_output(name: str) -> None:
    """From now on standard output, standard error and the log, which writes to the latter, carry the prefix."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # lines of several ranks meet in one file
    sys.stdout, sys.stderr = _prefixed(sys.stdout, name), _prefixed(sys.stderr, name)
    for handler in logging.getLogger("tenonry").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
            handler.setFormatter(logging.Formatter("%(levelname).1s %(asctime)s %(message)s", "%H:%M:%S"))


def _prefixed(stream: TextIO, name: str) -> Any:
    return PrefixedStream(stream, prefix_of(name, os.getpid(), colour=stream.isatty() and "NO_COLOR" not in os.environ))
