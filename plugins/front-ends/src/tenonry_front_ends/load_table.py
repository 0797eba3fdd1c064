"""The front end's link to the coordinator of several engines: reads what it publishes, wakes engines. Event loop."""

from __future__ import annotations

import contextlib
import functools
import time

import msgspec
import zmq

from tenonry.messages import EngineZmqAddresses, LoadTable, WaveStart
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, Socket, close_all, make_socket

STALE_S = 15.0  # three times the longest pause between two tables


class CoordinatorLink:
    """What the coordinator published last, and the way to wake engines that pause. Idle without a coordinator."""

    def __init__(self, context: Context, curve: CurveKeys | None) -> None:
        self._context = context
        self._curve = curve
        self._connected: EngineZmqAddresses | None = None
        self._table: Socket | None = None
        self._reports: Socket | None = None
        self._decoder = msgspec.msgpack.Decoder(LoadTable)
        self.loads: dict[int, int] = {}
        self.wave = 0
        self._is_running = False
        self._read_at = 0.0

    def connect(self, coordinator: EngineZmqAddresses) -> None:
        """Engines that join later report to the same coordinator; those that step together come back with another."""
        if coordinator != self._connected:
            self.close()
            self._connected = coordinator
            self.loads = {}
            self.wave = 0
            self._is_running = False
            connected = functools.partial(make_socket, self._context, bind=False, curve=self._curve)
            self._table = connected(
                zmq.SUB, coordinator.frontend_stats_publish_address or "", keep="latest"
            )
            self._table.subscribe(b"")
            self._reports = connected(
                zmq.PUSH, coordinator.coordinator_output or "", keep="connected"
            )

    def refresh(self) -> None:
        """Read what was published since the last call; called per request, so that no timer is needed."""
        if self._table is None:
            return
        while self._table.poll(0):
            table = self._decoder.decode(self._table.recv())
            self.loads = {index: running + waiting for index, running, waiting in table.loads}
            self.wave = max(self.wave, table.wave)
            self._is_running = table.is_running
            self._read_at = time.monotonic()
        if self.loads and time.monotonic() > self._read_at + STALE_S:
            self.loads = {}  # the coordinator is gone: no figures are better than old ones

    def wake(self, chosen: int) -> None:
        """A request went to `chosen`; the others have to step with it, if they pause."""
        if self._reports is not None and not self._is_running:
            start = msgspec.msgpack.encode(WaveStart(self.wave, chosen))
            with contextlib.suppress(zmq.Again):  # it is gone, as the owner of the engines knows
                self._reports.send(start, zmq.NOBLOCK)

    def close(self) -> None:
        close_all(self._table, self._reports)
