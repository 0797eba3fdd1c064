"""The role of an engine's process: lines that a plugin prints begin with the engine's name. Engine process.

Covers Python's standard output and error; a C library that writes to the file descriptor itself is not seen.
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from setproctitle import getproctitle

from tenonry.engine import proc
from tenonry_launcher_fork.fork_server import own_server


def run_engine(payload: Mapping[str, str]) -> int:
    """Runs the engine; returns its exit status."""
    prefix_output()
    return proc.run_engine(payload, own_server())


def prefix_output() -> None:
    """Prefixes each line written to standard output and error from now on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # lines of several engines meet in one file
        replaced: Any = stream
        replaced.write = LinePrefix(stream.write, process_name).write


def process_name() -> str:
    """Returns the name in the process title, which changes when a standby takes the place of another engine."""
    return getproctitle().removeprefix("tenonry: ").partition(" epoch ")[0]


class LinePrefix:
    """Passes text on to `write` with `[name] ` before each line that does not hold it already, as log lines do."""

    def __init__(self, write: Callable[[str], int], name: Callable[[], str]) -> None:
        self._write = write
        self._name = name
        self._at_start = True
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        """Returns the length of `text`, as any stream does."""
        with self._lock:
            prefix = f"[{self._name()}] "
            parts = []
            for line in text.splitlines(keepends=True):
                if self._at_start and prefix not in line:
                    parts.append(prefix)
                parts.append(line)
                self._at_start = line.endswith("\n")
            self._write("".join(parts))
        return len(text)
