"""Engines without a model, and their fleet, with companions of a coordination. Test process."""

from __future__ import annotations

import threading
import time
from typing import Any, Self

import zmq

from tenonry.config import EngineConfig
from tenonry.info import PluginRecord
from tenonry.interfaces.coordination import Coordination, EngineCompanion, FleetCompanion
from tenonry.interfaces.launcher import Death, EngineSpec
from tenonry.messages import CoordinatorFacts, EngineFacts, HandshakeMetadata
from tenonry.plugin.plan import PluginPlan
from tenonry.transport.folder import RunDirectory
from tenonry_testkit.roles import eventually

WORKER = PluginRecord(kind="worker", name="fake", target="tenonry_testkit.fakes:FakeWorker")


class FakeFleet:
    """A fleet without processes. `ends`: reports of its companion as (engine, death), -1 for all together."""

    def __init__(self, config: EngineConfig, *, lockstep: bool) -> None:
        self.config = config
        self.lockstep = lockstep
        self.needs_coordinator = True
        self.curve_keys = ""
        self.engines: dict[int, EngineFacts] = {}
        self.ends: list[tuple[int, Death]] = []

    def run_directory(self) -> RunDirectory:
        return RunDirectory()

    def address(self, directory: RunDirectory) -> str:
        return directory.address()

    def on_death(self, index: int, death: Death) -> None:
        self.ends.append((index, death))

    def lost(self, index: int, death: Death) -> None:
        self.ends.append((index, death))

    def lost_together(self, death: Death) -> None:
        self.ends.append((-1, death))


class CountingEngine:
    """An engine whose requests need `work` more steps. `num_forward`: forward passes, dummy ones included."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.work = 0
        self.counts = (0, 0)
        self.num_passes = 0
        self.num_forward = 0

    def has_work(self) -> bool:
        return self.work > 0

    def request_counts(self) -> tuple[int, int]:
        return self.counts

    def call_workers(self, method: str) -> None:
        assert method == "execute_dummy_batch"
        self.num_forward += 1

    def step(self) -> None:
        """Run one step of the requests."""
        self.work -= 1
        self.num_passes += 1
        self.num_forward += 1


class EngineGroup:
    """Three engines and their companions, driven by an engine loop."""

    def __init__(
        self, coordination: Coordination, config: EngineConfig, fleet: FleetCompanion
    ) -> None:
        self._context: zmq.Context[Any] = zmq.Context()
        self._is_ending = threading.Event()
        self._sync_steps = config.data_parallel_sync_steps
        self.engines = [CountingEngine(index) for index in range(config.data_parallel_size)]
        own = type(coordination)
        record = PluginRecord("coordination", own.__name__, f"{own.__module__}:{own.__qualname__}")
        metadata = HandshakeMetadata(
            addresses=[],
            data_parallel_size=config.data_parallel_size,
            rendezvous=fleet.rendezvous,
            coordinator=CoordinatorFacts(record, fleet.endpoints),
        )
        self.companions: list[EngineCompanion] = []
        try:
            for engine in self.engines:
                companion = coordination.companion(
                    self._context,
                    _spec(engine.index, config),
                    metadata,
                    config,
                    self._keeps_waiting,
                )
                companion.on_send(engine)
                self.companions.append(companion)
        except BaseException:
            self._context.destroy(linger=0)
            raise

    def _keeps_waiting(self) -> bool:
        return not self._is_ending.is_set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def turn(self, index: int) -> bool:
        """Run one iteration of an engine's loop. False if it pauses."""
        engine, companion = self.engines[index], self.companions[index]
        companion.receive(True)
        if engine.has_work():
            engine.step()
        elif not companion.must_step:
            return False
        companion.on_send(engine)
        companion.on_step(engine)
        return True

    def run_until_paused(self, seconds: float) -> None:
        """Step all engines, each in a thread, until they pause after at least one forward pass."""
        before = [engine.num_forward for engine in self.engines]
        threads = [
            threading.Thread(target=self._run, args=(index, before[index]))
            for index in range(len(self.engines))
        ]
        for thread in threads:
            thread.start()
        assert self._join(threads, seconds), "the engines do not step and pause together"

    def _run(self, index: int, before: int) -> None:
        while self._keeps_waiting():
            is_stepping = self.turn(index)
            if not is_stepping and self.engines[index].num_forward > before:
                return
            if not is_stepping:
                self.companions[index].socket.poll(10)  # ms

    def ends_alone(self, index: int, seconds: float) -> bool:
        """Step one engine while the others do not, and end it; False if it still waits after `seconds`."""
        engine = self.engines[index]
        thread = threading.Thread(target=self._run, args=(index, 1 << 60))
        thread.start()
        eventually(lambda: engine.num_passes >= self._sync_steps, seconds)
        self._is_ending.set()
        return self._join([thread], seconds)

    def _join(self, threads: list[threading.Thread], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        is_over = not any(thread.is_alive() for thread in threads)
        self._is_ending.set() if not is_over else None
        for thread in threads:
            thread.join()
        return is_over


def _spec(index: int, config: EngineConfig) -> EngineSpec:
    return EngineSpec(
        engine_index=index,
        local_rank=index,
        handshake_address="",
        config_text=config.model_dump_json(),
        plan_text=PluginPlan((WORKER,)).encode(),
        model_text="{}",
    )
