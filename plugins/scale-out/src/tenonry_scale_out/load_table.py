"""Loads of engines that several front ends share, and wake-ups, through the coordinator. Front end, event loop."""

from __future__ import annotations

import contextlib
import time

import msgspec
import zmq

from tenonry.interfaces.coordination import LoadSource
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context, close_all, make_socket
from tenonry_scale_out.wave_messages import Endpoints, LoadTable, WaveStart

STALE_S = 15.0  # three times the longest pause between two tables


class PublishedLoads(LoadSource):
    """The load table that the coordinator published last, and wake-ups for engines that pause."""

    def __init__(self, context: Context, curve: CurveKeys | None, endpoints: Endpoints) -> None:
        self._table = make_socket(context, zmq.SUB, endpoints.loads, curve=curve, keep="latest")
        self._table.subscribe(b"")
        self._reports = make_socket(
            context, zmq.PUSH, endpoints.reports, curve=curve, keep="connected"
        )
        self._decoder = msgspec.msgpack.Decoder(LoadTable)
        self.loads = {}
        self._is_running = False
        self._read_at = 0.0

    def refresh(self) -> None:
        while self._table.poll(0):
            table = self._decoder.decode(self._table.recv())
            self.loads = {index: running + waiting for index, running, waiting in table.loads}
            self.wave = max(self.wave, table.wave)
            self._is_running = table.is_running
            self._read_at = time.monotonic()
        if self.loads and time.monotonic() > self._read_at + STALE_S:
            self.loads = {}  # the coordinator is gone: no figures are better than old ones

    def wake(self, chosen: int) -> None:
        if not self._is_running:
            start = msgspec.msgpack.encode(WaveStart(self.wave, chosen))
            with contextlib.suppress(zmq.Again):  # it is gone, as the owner of the engines knows
                self._reports.send(start, zmq.NOBLOCK)

    def close(self) -> None:
        close_all(self._table, self._reports)
