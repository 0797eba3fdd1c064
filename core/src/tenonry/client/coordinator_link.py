"""The front end's link to the coordinator of several engines: reads what it publishes, wakes engines. Event loop."""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenonry.messages import EngineZmqAddresses, LoadTable, WaveStart
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import close_all, make_socket

STALE_S = 15.0  # three times as long as the coordinator is ever silent


class CoordinatorLink:
    """What the coordinator publishes, as last heard, and the way to wake engines that pause. Idle without one."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], curve: CurveKeys | None) -> None:
        self._context, self._curve = context, curve
        self._table: zmq.Socket[bytes] | None = None
        self._reports: zmq.Socket[bytes] | None = None
        self._decoder = msgspec.msgpack.Decoder(LoadTable)
        self.loads: dict[int, int] = {}
        self.wave, self._is_running, self._heard_at = 0, False, 0.0

    def connect(self, coordinator: EngineZmqAddresses) -> None:
        """Once; engines that join later report to the same coordinator."""
        if self._table is None:
            loads, reports = (
                coordinator.frontend_stats_publish_address or "",
                coordinator.coordinator_output or "",
            )
            self._table = make_socket(
                self._context, zmq.SUB, loads, bind=False, curve=self._curve, keep="latest"
            )
            self._table.subscribe(b"")
            self._reports = make_socket(
                self._context, zmq.PUSH, reports, bind=False, curve=self._curve, keep="connected"
            )

    def refresh(self) -> None:
        """Read what was published meanwhile; called per request, so that nothing has to wake up for it."""
        if self._table is None:
            return
        while self._table.poll(0):
            table = self._decoder.decode(self._table.recv())
            self.loads = {index: running + waiting for index, running, waiting in table.loads}
            self.wave, self._is_running = max(self.wave, table.wave), table.is_running
            self._heard_at = time.monotonic()
        if (
            self.loads and time.monotonic() > self._heard_at + STALE_S
        ):  # the coordinator is gone: better no figures
            self.loads = {}

    def wake(self, chosen: int) -> None:
        """A request went to `chosen`; the others have to step with it, if they pause."""
        if self._reports is not None and not self._is_running:
            with contextlib.suppress(zmq.Again):  # it is gone; the engines' owner knows
                self._reports.send(
                    msgspec.msgpack.encode(WaveStart(self.wave, chosen)), zmq.NOBLOCK
                )

    def close(self) -> None:
        close_all(self._table, self._reports)
