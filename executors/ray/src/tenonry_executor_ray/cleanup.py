"""Kills the remaining processes of a Ray cluster that a front end started for itself. A separate process without Ray.

`python -m tenonry_executor_ray.cleanup FOLDER` waits for the end of its standard input, whose other end only the front
end has. Ray's own processes notice the end of their owner, too, but not all of them soon: the agents of a node stay for
a minute.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

SESSION = "session_"  # the prefix of their folders
KILL_TIMEOUT_S = 10.0
PAUSE_S = 0.2


def start_cleanup(session: str) -> subprocess.Popen[bytes]:
    """Start the process for the cluster with this session folder. It cleans up when its standard input is closed."""
    command = [sys.executable, "-P", "-m", "tenonry_executor_ray.cleanup", session]
    return subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)


def main() -> int:
    """Wait, kill, remove the sockets; Ray's logs stay."""
    session = Path(*sys.argv[1:2])
    if not (session.is_absolute() and session.name.startswith(SESSION)):
        sys.exit(
            "give the session folder of a Ray cluster, such as /tmp/ray/session_2026-01-31_12-00-00_000000_1"
        )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while (left := processes_of(session)) and time.monotonic() < deadline:
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, PAUSE_S)
    shutil.rmtree(session / "sockets", ignore_errors=True)
    return 0


def processes_of(session: Path) -> list[psutil.Process]:
    """Ray's processes of a session: they name it in their command line, or have a title of Ray's and log to it.

    A program that is connected to the cluster logs there, too, and is none of them.
    """
    return [process for process in psutil.process_iter() if _belongs_to(process, session)]


def _belongs_to(process: psutil.Process, session: Path) -> bool:
    with contextlib.suppress(psutil.Error, OSError):
        if process.pid == os.getpid():
            return False
        line = " ".join(process.cmdline())
        return str(session) in line or (
            line.startswith("ray::")
            and any(Path(file.path).is_relative_to(session) for file in process.open_files())
        )
    return False


if __name__ == "__main__":
    sys.exit(main())
