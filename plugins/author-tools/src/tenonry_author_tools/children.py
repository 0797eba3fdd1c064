"""Child processes with a time limit, ended with all their descendants. Command line."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from typing import Any


def run_child(
    command: Sequence[str | os.PathLike[str]], timeout_s: float, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command in a process group of its own.

    Kills the group when the time is over, which raises TimeoutExpired, and when this process is interrupted.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
