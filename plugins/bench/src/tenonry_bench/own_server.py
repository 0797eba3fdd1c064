"""Starts a server as a child for a benchmark, ours or a peer's, and stops it. Client process.

The child stays in this process's session: Linux schedules sessions separately (autogroups), and on shared cores a
client would stall for seconds while a server in another session computes.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence

from tenonry.errors import LaunchError
from tenonry_bench.processes import tenonry_command

# Logged once, when every process of the server takes requests.
READY = re.compile(r"ready at http://127\.0\.0\.1:(\d+)")
STOP_S = 10.0
POLL_S = 0.05


class ServerProcess:
    """A server on 127.0.0.1, started by `command`. An output line that matches `ready` marks it as ready for requests,
    and with `port` 0 contains the port as the first group.
    """

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        ready: re.Pattern[str] = READY,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._ready_line = ready
        self._lines: deque[str] = deque(maxlen=40)
        self._port = port
        self._is_ready = threading.Event()
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            env=environment,
        )
        self.pid = self._process.pid
        self._reader = threading.Thread(target=self._read, name="server-output", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._lines.append(line.rstrip())
            found = None if self._is_ready.is_set() else self._ready_line.search(line)
            if found:
                self._port = self._port or int(found.group(1))
                self._is_ready.set()

    async def ready(self, timeout_s: float) -> tuple[str, float]:
        """Wait for it; its base URL, and seconds since its start. Raises LaunchError with its last words."""
        while time.monotonic() - self._started < timeout_s:
            if self._process.poll() is not None:
                raise LaunchError(
                    f"the server ended with status {self._process.returncode}:\n{self._last_words()}"
                )
            if self._is_ready.is_set():
                return self.base_url, time.monotonic() - self._started
            await asyncio.sleep(POLL_S)
        raise LaunchError(f"the server is not ready after {timeout_s:g} s:\n{self._last_words()}")

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _last_words(self) -> str:
        self._reader.join(timeout=1.0)
        return "\n".join(self._lines)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not end."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


def start_own_server(
    model: str,
    port: int = 0,
    arguments: Sequence[str] = (),
    environment: dict[str, str] | None = None,
) -> ServerProcess:
    """`tenonry serve MODEL`. With `port` 0 it takes a free one, which it logs when it is ready."""
    place = ["--host", "127.0.0.1", "--port", str(port)]
    command = [*tenonry_command(), "serve", model, *place, *arguments]
    return ServerProcess(command, port, READY, environment)
