"""A server whose processes meet faults, and the required state after them. Test process."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import psutil
from ledger import Ledger, differences, run_all
from server_process import Server, eventually

RUNNING = ("running", "waiting")


class Disturbed:
    """`counters`: folder of its failpoints. `sockets`: folder of its socket files."""

    def __init__(self, server: Server, counters: Path, sockets: Path) -> None:
        self.server = server
        self.counters = counters
        self.sockets = sockets
        self._pids: set[int] = set()

    def times(self, place: int) -> int:
        """Number of times that processes reached the point of a fault."""
        (file,) = self.counters.glob(f"{place} *")
        return len(file.read_text("utf-8").splitlines())

    def run(self, strike: Any = lambda _: None) -> dict[str, Ledger]:
        """All streams to their ends."""
        self.server.ready()
        self._note()
        try:
            return run_all(self.server.url, strike)
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r}\n{self.server.output}") from error
        finally:
            self._note()

    def _note(self) -> None:
        self._pids |= set(self.server.pids().values())

    def check(self, expected: dict[str, dict[str, Any]], ledgers: dict[str, Ledger]) -> None:
        """Every stream is as without faults; the server serves, ends well, and leaves nothing."""
        server = self.server
        assert differences(expected, ledgers) == {}, server.output
        eventually(lambda: server.get("/ready")[0] == 200)
        self._note()
        eventually(lambda: not any(self._held()))
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0, server.output
        eventually(lambda: not any(map(psutil.pid_exists, self._pids)))
        assert list(self.sockets.iterdir()) == []

    def _held(self) -> list[float]:
        """Requests that run or wait."""
        lines = self.server.get("/metrics")[1].splitlines()
        wanted = tuple(f"tenonry:num_requests_{state}{{" for state in RUNNING)
        return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted)]
