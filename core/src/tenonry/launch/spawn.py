"""Start of child processes: their input, and a fresh interpreter for it. Public. The parent's process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

GROUP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True)
class Start:
    """Input of a child process.

    `message`: the text that it reads from standard input. `fds`: files that it inherits under the same numbers;
    `owned_fds`: those of them that the starter closes in the parent.
    """

    message: bytes
    environment: Mapping[str, str]
    fds: tuple[int, ...]
    owned_fds: tuple[int, ...] = ()

    def close(self) -> None:
        """Close the parent's copies of `owned_fds`."""
        for fd in self.owned_fds:
            os.close(fd)


class Process(Protocol):
    """A child process from the view of its parent: the common part of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def begin(self) -> None:
        """Start a process whose start was deferred. Called once, by the thread that then waits for its end."""

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def send_signal(self, number: int, /) -> None: ...


class ProcessStarter(Protocol):
    """Creates child processes that run `tenonry.launch.child`.

    `follows_thread`: the kernel's parent-death signal arrives when the thread that called `start` ends.
    """

    @property
    def follows_thread(self) -> bool: ...

    def start(self, start: Start) -> Process:
        """Start a child, now or when `begin` is called. Raises OSError. Closes `start.owned_fds` in any case."""


class FreshProcess(subprocess.Popen[bytes]):
    """A child in its own interpreter."""

    def begin(self) -> None:
        """Do nothing: the process runs since its construction."""


class FreshInterpreter:
    """Starts `python -P -m tenonry.launch.child` for each child."""

    follows_thread = True

    def start(self, start: Start) -> FreshProcess:
        try:
            return start_fresh(start)
        finally:
            start.close()


def start_fresh(start: Start) -> FreshProcess:
    """Start a fresh interpreter; `start.owned_fds` stay open. Raises OSError."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Inherited, until the child ignores them.
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        process = FreshProcess(
            [sys.executable, "-P", "-m", "tenonry.launch.child"],
            stdin=subprocess.PIPE,
            env=dict(start.environment),
            pass_fds=start.fds,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    assert process.stdin is not None  # noqa: S101 - PIPE above
    with contextlib.suppress(BrokenPipeError), process.stdin:  # broken: its watcher reports it
        process.stdin.write(start.message)
    return process
