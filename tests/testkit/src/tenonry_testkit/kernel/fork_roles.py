"""Imports of a process before it is forked, in tests, and their effects. Child processes."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Mapping

from tenonry_testkit.kernel import roles  # noqa: F401 - what the forks run
from tenonry_testkit.roles import write_facts

_DONE: list[str] = []


def imports(argument: str) -> None:
    """Takes as many seconds as the argument specifies."""
    time.sleep(float(argument or 0))
    _DONE.append(argument)


def imports_numpy(argument: str) -> None:
    """numpy's linear algebra library starts a thread for each processor but one, unless configured otherwise."""
    importlib.import_module("numpy")
    imports(argument)


def fails(argument: str) -> None:
    """Raises as for a missing module."""
    raise ImportError(argument)


def starts_a_thread(argument: str) -> None:
    """Starts a thread, like some libraries."""
    imports(argument)
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def opens_a_file(argument: str) -> None:
    """Opens a file, like some libraries."""
    imports(argument)
    os.open(os.devnull, os.O_RDONLY)


def forbids_forks(argument: str) -> None:
    """Fails the first fork, or the second one, of a fork: as if a user has too many processes."""
    imports("")
    real = os.fork
    left = int(argument)

    def fork() -> int:
        nonlocal left
        left -= 1
        if not left:
            raise BlockingIOError("too many processes")
        return real()

    os.fork = fork


def report_fork(payload: Mapping[str, str]) -> int:
    """Write whether this process is a fork, and its location; then wait for a signal."""
    sys.stderr.write("said\n")
    facts = {
        "pid": os.getpid(),
        "is_fork": bool(_DONE),
        "folder": os.getcwd(),  # noqa: PTH109 - as text
        "of_test": os.environ.get("OF_TEST", ""),
    }
    write_facts(payload, facts)
    while True:
        time.sleep(600)
