"""Prefixes `(worker 0.1 pid=4711) ` to every output line of a rank's process. The rank's process.

It covers Python's streams only; a C library that writes to the file descriptor bypasses it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any, TextIO

CYAN_BOLD, RESET = "\x1b[1;36m", "\x1b[0m"


class PrefixedStream:
    """A text stream with a prefix before each line.

    Only whole lines are passed on, each group of them in one write, because ranks share the underlying stream; a
    partial line waits for its end, or for `flush`.
    """

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._lock = threading.RLock()
        self._rest = ""
        self._at_start = True

    def write(self, text: str) -> int:
        """Returns the length of `text`, as any stream does."""
        with self._lock:
            lines, newline, self._rest = (self._rest + text).rpartition("\n")
            if newline:
                self._pass_on(lines, newline)
        return len(text)

    def flush(self) -> None:
        """Pass on an unfinished line as well."""
        with self._lock:
            if self._rest:
                self._pass_on(self._rest, "")
                self._rest = ""
            self._stream.flush()

    def _pass_on(self, lines: str, end: str) -> None:
        first = self._prefix if self._at_start else ""
        self._stream.write(first + lines.replace("\n", "\n" + self._prefix) + end)
        self._at_start = bool(end)

    def writelines(self, lines: Iterable[str]) -> None:
        self.write("".join(lines))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def prefix_of(name: str, pid: int, *, colour: bool) -> str:
    """The prefix of a line, cyan and bold if `colour`."""
    label = f"({name} pid={pid})"
    return f"{CYAN_BOLD}{label}{RESET} " if colour else f"{label} "


def prefix_output(name: str) -> None:
    """From now on standard output, standard error and the log, which writes to the latter, carry the prefix."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # lines of several ranks meet in one file
    sys.stdout, sys.stderr = _prefixed(sys.stdout, name), _prefixed(sys.stderr, name)
    for handler in logging.getLogger("tenonry").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
            handler.setFormatter(
                logging.Formatter("%(levelname).1s %(asctime)s %(message)s", "%H:%M:%S")
            )


def _prefixed(stream: TextIO, name: str) -> Any:
    return PrefixedStream(
        stream,
        prefix_of(name, os.getpid(), colour=stream.isatty() and "NO_COLOR" not in os.environ),
    )
