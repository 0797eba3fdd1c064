"""The coordinator of several engines: reports every engine's load to the front ends, and keeps engines in lockstep.

A process of its own, started by the process that starts the engines. Engines push their load when it changes; front
ends get a table of all loads at most ten times a second. With lockstep, all engines of a wave ask at the same steps
whether any of them has work; the verdict goes out when the last has asked.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import NoReturn

import msgspec
import zmq

from tenonry.transport.keys import CurveKeys, keys_of
from tenonry.transport.sockets import TCP, Context, Socket, endpoint, make_socket
from tenonry_scale_out.wave_messages import (
    CoordinatorInput,
    CoordinatorOrder,
    Endpoints,
    EngineLoad,
    LoadTable,
    WaveStart,
    WaveVerdict,
)

logger = logging.getLogger("tenonry.coordinator")
PUBLISH_EVERY_S = 0.1  # while figures change
REPEAT_EVERY_S = 5.0  # while they do not: for front ends that joined later


class CoordinatorState:
    """State of the coordinator; `take` returns the orders that follow from a message. Pure, so that it can be tested.

    `lockstep`: engines pause together and have to be woken.
    """

    def __init__(self, *, lockstep: bool = True) -> None:
        self.loads: dict[int, tuple[int, int]] = {}
        self.wave = 0
        self.is_running = not lockstep
        self.changed = False
        self._unfinished: dict[int, bool] = {}  # of engines that have reported

    def take(self, message: CoordinatorInput) -> list[CoordinatorOrder]:
        self.changed = True
        if isinstance(message, EngineLoad):
            self.loads[message.engine_index] = (message.num_running, message.num_waiting)
            return []
        if isinstance(message, WaveStart):
            return self._start(message)
        self._unfinished[message.engine_index] = message.unfinished
        return self._verdict()

    def _start(self, order: WaveStart) -> list[CoordinatorOrder]:
        """The first request of a wave wakes the engines; later ones find all of them running.

        An order for a wave that is over came late: the engine with that request has run in it, or starts the next.
        """
        if order.wave < self.wave or (self.is_running and order.wave == self.wave):
            return []
        self.wave = order.wave
        self.is_running = True
        return [WaveStart(self.wave, order.exclude_index)]

    def _verdict(self) -> list[CoordinatorOrder]:
        """Return the verdict once every engine has reported."""
        if set(self._unfinished) < set(self.loads):
            return []
        unfinished = any(self._unfinished.values())
        self._unfinished = {}
        verdict = WaveVerdict(self.wave, unfinished)
        if not unfinished:
            self.wave += 1
            self.is_running = False
        return [verdict]

    def table(self) -> LoadTable:
        self.changed = False
        loads = [(index, *counts) for index, counts in sorted(self.loads.items())]
        return LoadTable(loads, self.wave, self.is_running)


class Coordinator:
    """The state and its sockets: files in one directory, or any free ports of one address."""

    def __init__(self, address: str, curve: CurveKeys | None, *, lockstep: bool) -> None:
        self._context: Context = zmq.Context()

        def bind(kind: int, suffix: str) -> Socket:
            own = address if address.startswith(TCP) else address + suffix
            return make_socket(self._context, kind, own, bind=True, curve=curve)

        self._reports = bind(zmq.PULL, "")
        self._orders = bind(zmq.PUB, "-orders")
        self._loads = bind(zmq.PUB, "-loads")
        self._decoder = msgspec.msgpack.Decoder(CoordinatorInput)
        self.state = CoordinatorState(lockstep=lockstep)

    def endpoints(self) -> Endpoints:
        """Addresses to which engines and front ends connect."""
        return Endpoints(
            orders=endpoint(self._orders),
            reports=endpoint(self._reports),
            loads=endpoint(self._loads),
        )

    def run(self) -> NoReturn:
        """Until the process is stopped, which ends it immediately: there is nothing to finish."""
        published = 0.0
        while True:
            due = published + (PUBLISH_EVERY_S if self.state.changed else REPEAT_EVERY_S)
            wait_ms = round((due - time.monotonic()) * 1000)
            if self._reports.poll(max(0, wait_ms)):
                self._receive(self._reports.recv())
            if time.monotonic() >= due:
                self._loads.send(msgspec.msgpack.encode(self.state.table()))
                published = time.monotonic()

    def _receive(self, frame: bytes) -> None:
        try:
            message = self._decoder.decode(frame)
        except (ValueError, RecursionError) as error:  # invalid UTF-8 is no msgspec.DecodeError
            logger.warning("ignored an invalid report: %s", error)
            return
        before = self.state.is_running
        for order in self.state.take(message):
            self._orders.send(msgspec.msgpack.encode(order))
        if self.state.is_running != before:  # front ends wake the engines only when they pause
            self._loads.send(msgspec.msgpack.encode(self.state.table()))

    def close(self) -> None:
        self._context.destroy(linger=0)


def run_coordinator(payload: Mapping[str, str]) -> NoReturn:
    """The role of the coordinator's process. Its endpoints are written to the file descriptor `answer`."""
    curve = keys_of(payload["curve_keys"])
    coordinator = Coordinator(payload["address"], curve, lockstep=bool(payload["lockstep"]))
    try:
        answer = int(payload["answer"])
        os.write(answer, msgspec.json.encode(coordinator.endpoints()))
        os.close(answer)
        coordinator.run()
    finally:
        coordinator.close()
