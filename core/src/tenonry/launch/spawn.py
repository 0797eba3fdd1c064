"""How a child process comes to be: what it is given, and a fresh interpreter that takes it. The parent's process."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

GROUP_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Start:
    """`message`: what the child reads from standard input. `fds`: files that it has under the same numbers."""

    message: bytes
    environment: Mapping[str, str]
    fds: tuple[int, ...]


def start_fresh(start: Start) -> subprocess.Popen[bytes]:
    """`python -P -m tenonry.launch.child`. Raises OSError."""
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Inherited, until the child ignores them.
        signal.pthread_sigmask(signal.SIG_BLOCK, GROUP_SIGNALS)
        process = subprocess.Popen(
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
