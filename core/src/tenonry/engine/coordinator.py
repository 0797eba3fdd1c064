"""The coordinator of several engines: tells front ends how busy each is, and engines that must step together when.

A process of its own, started by whoever starts the engines. Engines push their load when it changes; front ends get a
table of them at most ten times a second. With lockstep, all engines of a wave ask at the same steps whether anybody has
work; the answer goes out when the last has asked.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping
from typing import NoReturn

import msgspec
import zmq

from tenonry.messages import (
    CoordinatorInput,
    CoordinatorOrder,
    EngineLoad,
    EngineZmqAddresses,
    LoadTable,
    WaveStart,
    WaveSync,
    WaveVerdict,
)
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import TCP, endpoint, make_socket

logger = logging.getLogger(__name__)
PUBLISH_EVERY_S = 0.1  # while figures change
REPEAT_EVERY_S = 5.0  # when they do not: for front ends that came later


class CoordinatorState:
    """What the coordinator knows; `take` returns the orders that follow from a message. Pure, for the tests' sake.

    `lockstep`: engines pause together, and have to be woken.
    """

    def __init__(self, *, lockstep: bool = True) -> None:
        self.loads: dict[int, tuple[int, int]] = {}
        self.wave, self.is_running, self.changed = 0, not lockstep, False
        self._asked: dict[int, WaveSync] = {}

    def take(self, message: CoordinatorInput) -> list[CoordinatorOrder]:
        self.changed = True
        if isinstance(message, EngineLoad):
            self.loads[message.engine_index] = (message.num_running, message.num_waiting)
            return []
        if isinstance(message, WaveStart):
            return self._start(message)
        self._asked[message.engine_index] = message
        return self._verdict()

    def _start(self, order: WaveStart) -> list[CoordinatorOrder]:
        """The first request of a wave; later ones find everybody awake.

        Word of a wave that is over came late: the engine that the request went to has run in it, or starts the next.
        """
        if order.wave < self.wave or (self.is_running and order.wave == self.wave):
            return []
        self.wave, self.is_running = order.wave, True
        return [WaveStart(self.wave, order.exclude_index)]

    def _verdict(self) -> list[CoordinatorOrder]:
        """Once every engine has asked."""
        if set(self._asked) < set(self.loads):
            return []
        asked, self._asked = list(self._asked.values()), {}
        unfinished = any(one.unfinished for one in asked)
        step = max(one.step for one in asked)
        verdict = WaveVerdict(self.wave, step, unfinished)
        if not unfinished:
            self.wave, self.is_running = self.wave + 1, False
        return [verdict]

    def table(self) -> LoadTable:
        self.changed = False
        loads = [(index, *counts) for index, counts in sorted(self.loads.items())]
        return LoadTable(loads, self.wave, self.is_running)


class Coordinator:
    """The state and its sockets: files beside each other, or any free ports of one address."""

    def __init__(self, address: str, curve: CurveKeys | None, *, lockstep: bool) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._reports, self._orders, self._loads = (
            make_socket(
                self._context,
                kind,
                address if address.startswith(TCP) else address + suffix,
                bind=True,
                curve=curve,
            )
            for kind, suffix in ((zmq.PULL, ""), (zmq.PUB, "-orders"), (zmq.PUB, "-loads"))
        )
        self._decoder = msgspec.msgpack.Decoder(CoordinatorInput)
        self.state = CoordinatorState(lockstep=lockstep)

    def endpoints(self) -> EngineZmqAddresses:
        """Where engines and front ends find us."""
        return EngineZmqAddresses(
            coordinator_input=endpoint(self._orders),
            coordinator_output=endpoint(self._reports),
            frontend_stats_publish_address=endpoint(self._loads),
        )

    def run(self) -> NoReturn:
        """Until the process is told to stop, which ends it at once: it has nothing to finish."""
        published = 0.0
        while True:
            due = published + (PUBLISH_EVERY_S if self.state.changed else REPEAT_EVERY_S)
            if self._reports.poll(max(0, min(1000, round((due - time.monotonic()) * 1000)))):
                self._receive(self._reports.recv())
            if time.monotonic() >= due:
                self._loads.send(msgspec.msgpack.encode(self.state.table()))
                published = time.monotonic()

    def _receive(self, frame: bytes) -> None:
        try:
            message = self._decoder.decode(frame)
        except (ValueError, RecursionError) as error:  # text that is no UTF-8 is no DecodeError
            logger.warning("dropped a report: %s", error)
            return
        before = self.state.is_running
        for order in self.state.take(message):
            self._orders.send(msgspec.msgpack.encode(order))
        if self.state.is_running != before:  # front ends decide by it whether to wake the engines
            self._loads.send(msgspec.msgpack.encode(self.state.table()))

    def close(self) -> None:
        self._context.destroy(linger=0)


def run_coordinator(payload: Mapping[str, str]) -> NoReturn:
    """The role of the coordinator's process. `answer` is a descriptor for our endpoints."""
    curve = CurveKeys.decode(payload["curve_keys"]) if payload["curve_keys"] else None
    coordinator = Coordinator(payload["address"], curve, lockstep=bool(payload["lockstep"]))
    try:
        answer = int(payload["answer"])
        os.write(answer, msgspec.json.encode(coordinator.endpoints()))
        os.close(answer)
        coordinator.run()
    finally:
        coordinator.close()
