"""pytest plugin of `tenonry plugins dev`: waits before the collection, and runs each round in a fork. Test process.

pytest and the suites are imported once; a round costs the import of the plugin and the tests. A line of the socket with
the deadline starts one; the answer is its exit status.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
from pathlib import Path
from typing import Any

from tenonry_author_tools.budget import Budget


def pytest_addoption(parser: Any) -> None:
    """File of the record, and the inherited socket."""
    group = parser.getgroup("tenonry plugins dev")
    group.addoption("--dev-record", metavar="FILE", type=Path)
    group.addoption("--dev-socket", metavar="FD", type=int)


def pytest_configure(config: Any) -> None:
    """Take part only with a socket."""
    if config.getoption("--dev-socket") is not None:
        config.pluginmanager.register(Rounds(config))


class Rounds:
    """Serves rounds until the socket is closed; in a fork, pytest continues with its collection."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def pytest_collection(self) -> None:
        """Registered last, it is called first."""
        config = self._config
        for suite in config.args:
            runpy.run_path(suite)  # imports what it needs
        connection = socket.socket(fileno=config.getoption("--dev-socket"))
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                if (pid := os.fork()) == 0:
                    record = config.getoption("--dev-record")
                    config.pluginmanager.register(Budget(record, float(line)))
                    return
                status = wait(pid, connection)
                lines.write(f"{os.waitstatus_to_exitcode(status)}\n")
                lines.flush()
        os._exit(0)


def wait(pid: int, connection: socket.socket) -> int:
    """Return the status of a child. Kills the process group, this process included, if the other end is closed."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.signal(signal.SIGCHLD, lambda *_: None), signal.set_wakeup_fd(theirs.fileno())
    with ours, theirs:
        try:
            while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0):
                if connection in select.select([ours, connection], [], [])[0]:
                    os.killpg(0, signal.SIGKILL)
                ours.recv(64)
        finally:
            signal.signal(signal.SIGCHLD, before[0])
            signal.set_wakeup_fd(before[1])
    return found[1]
