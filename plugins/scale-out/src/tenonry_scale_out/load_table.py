"""Loads of engines that several front ends share, and wake-ups, through the coordinator. Front end, event loop."""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, close_all, make_socket
from tenonry_scale_out.wave_messages import Endpoints, LoadTable, WaveStart

STALE_S = 15.0  # three times the longest pause between two tables


class PublishedLoads:
    """The load table that the coordinator published last, and wake-ups for engines that pause.

    `loads`: waiting and running requests by engine, of all front ends; empty where nothing is known. `wave`: number
    that the next request carries.
    """

    def __init__(self, context: Context, curve: CurveKeys | None, endpoints: Endpoints) -> None:
        self._table = make_socket(context, zmq.SUB, endpoints.loads, curve=curve, keep="latest")
        self._table.subscribe(b"")
        self._reports = make_socket(
            context, zmq.PUSH, endpoints.reports, curve=curve, keep="connected"
        )
        self._decoder = msgspec.msgpack.Decoder(LoadTable)
        self.loads: dict[int, int] = {}
        self.wave = 0
        self._is_running = False
        self._read_at = 0.0

    def refresh(self) -> None:
        """Read what has arrived."""
        while self._table.poll(0):
            table = self._decoder.decode(self._table.recv())
            self.loads = {index: running + waiting for index, running, waiting in table.loads}
            self.wave = max(self.wave, table.wave)
            self._is_running = table.is_running
            self._read_at = time.monotonic()
        if self.loads and time.monotonic() > self._read_at + STALE_S:
            self.loads = {}  # the coordinator is gone: no figures are better than old ones

    def wake(self, chosen: int) -> None:
        """A request was sent to engine `chosen`; the others have to step with it, if they pause."""
        if not self._is_running:
            start = msgspec.msgpack.encode(WaveStart(self.wave, chosen))
            with contextlib.suppress(zmq.Again):  # it is gone, as the owner of the engines knows
                self._reports.send(start, zmq.NOBLOCK)

    def close(self) -> None:
        """Close the sockets. Idempotent."""
        close_all(self._table, self._reports)
