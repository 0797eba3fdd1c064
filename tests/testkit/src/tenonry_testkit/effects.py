"""Detects effects of a call beyond its result: files, sockets, processes, standard streams, environment, threads. Test
process.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

EFFECTS = {
    "open": "opens the file {0}",
    "socket.connect": "opens a connection to {1}",
    "socket.bind": "binds a socket to {1}",
    "socket.getaddrinfo": "resolves the host {0}",
    "subprocess.Popen": "starts the process {0}",
    "os.fork": "forks",
    "os.posix_spawn": "starts the process {0}",
    "os.system": "runs the command {0}",
}
# Files that an import or a look at the metadata of distributions inside the call reads.
IMPORTED = (".py", ".pyc", ".so", ".pth", ".pyd", ".zip", "METADATA", "RECORD", "entry_points.txt")


class EffectWatch:
    """Audit hook that records the effects of calls in a `with watched():` block of the same thread."""

    def __init__(self) -> None:
        self._is_installed = False
        self._thread = 0
        self._seen: list[str] = []

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if threading.get_ident() != self._thread or event not in EFFECTS:
            return
        if event == "open" and str(arguments[0]).endswith(IMPORTED):
            return
        self._seen.append(EFFECTS[event].format(*arguments))

    @contextlib.contextmanager
    def watched(self) -> Iterator[list[str]]:
        """Yields the list of effects, complete when the block has ended. Standard streams are captured."""
        if not self._is_installed:
            sys.addaudithook(self)  # for the rest of the process, without effect outside a block
            self._is_installed = True
        seen: list[str] = []
        environment, folder = dict(os.environ), os.getcwd()  # noqa: PTH109 - as text
        threads = set(threading.enumerate())
        output = io.StringIO()
        self._thread, self._seen = threading.get_ident(), seen
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                yield seen
        finally:
            self._thread = 0
            changed = {
                name
                for name in {*environment, *os.environ}
                if environment.get(name) != os.environ.get(name)
            } - {"PYTEST_CURRENT_TEST"}
            seen += [f"changes the variable {name}" for name in sorted(changed)]
            for name in changed:
                _restore(name, environment.get(name))
            if os.getcwd() != folder:  # noqa: PTH109
                seen.append(f"changes the current folder to {os.getcwd()}")  # noqa: PTH109
                os.chdir(folder)
            started = set(threading.enumerate()) - threads
            seen += sorted(f"leaves the thread {thread.name}" for thread in started)
            if output.getvalue():
                seen.append(f"writes {output.getvalue()[:60]!r}")


def _restore(name: str, value: str | None) -> None:
    if value is None:
        del os.environ[name]
    else:
        os.environ[name] = value


watch = EffectWatch()
watched = watch.watched
