"""The pytest process of `tenonry plugins dev`, whose imports serve all rounds. Command line."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


class SuiteProcess:
    """Runs pytest with `options` in `folder`, where its output and record are. It starts with the first round."""

    def __init__(self, folder: Path, options: Sequence[str]) -> None:
        self.record = folder / "record.json"
        self._folder = folder
        self._options = options
        self._output = folder / "output.txt"
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def round(self, deadline: float, timeout_s: float) -> tuple[int, str]:
        """Run the tests until a monotonic time; returns the exit status and the last line of output.

        Raises TimeoutError, and kills the process and its descendants, if the round does not end in time.
        """
        process, connection = self._running = self._running or self._start()
        self._output.write_bytes(b"")
        connection.settimeout(timeout_s)
        try:
            connection.sendall(f"{deadline}\n".encode())
            answer = connection.recv(64)
        except ConnectionError:
            answer = b""
        except BaseException:
            self.close()
            raise
        status = int(answer or process.wait())
        if not answer:  # it ended before or instead of the round
            self.close()
        lines = self._output.read_text("utf-8", "replace").strip().splitlines()
        return status, lines[-1] if lines else ""

    def _start(self) -> tuple[subprocess.Popen[bytes], socket.socket]:
        ours, theirs = socket.socketpair()
        options = [f"--dev-record={self.record}", f"--dev-socket={theirs.fileno()}", *self._options]
        with theirs, self._output.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", "tenonry_author_tools.rounds", *options],
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            )
        return process, ours

    def close(self) -> None:
        """Kill the process and its descendants. Idempotent."""
        running, self._running = self._running, None
        if running is not None:
            process, connection = running
            connection.close()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
