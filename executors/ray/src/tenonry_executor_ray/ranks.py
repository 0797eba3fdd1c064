"""The ranks of one engine in a Ray cluster: actors, their group, questions and steps. Engine process; imports Ray."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tenonry.errors import EngineDeadError
from tenonry.interfaces.executor import ExecutorContext
from tenonry.transport.folder import RunDirectory
from tenonry_executor_ray import placement
from tenonry_executor_ray.options import GROUP_VARIABLE, RayExecutorOptions
from tenonry_executor_ray.rank_actor import LIFE, RESULTS, RankActor
from tenonry_executor_ray.session import (
    DISCONNECTED,
    Disconnected,
    RaySession,
    bounded,
    ready,
    words,
)
from tenonry_executor_ray.wire import (
    OK,
    Answer,
    Failure,
    NodeFacts,
    RankSpec,
    driver_rank,
    rank_spec,
    refuse_differences,
)

logger = logging.getLogger("tenonry.ray")
WAIT_S = 0.5
# After an error of one rank: that another one is gone may be its cause, and is known later.
GRACE_S = 0.5
STOP_TIMEOUT_S = 3.0
FAILED_STOP_TIMEOUT_S = 0.5
RELEASE_TIMEOUT_S = 5.0
START_SHARE = (
    0.9  # of start_timeout: the error names a rank before the front end gives up on the engine
)
# A message of this size goes once into the object store instead of to each rank.
SHARED_BYTES = 64 * 1024


class Ranks:
    """All ranks of one engine. `failure`: reason of a permanent failure; `on_failure(failure)` is called once."""

    def __init__(
        self,
        context: ExecutorContext,
        options: RayExecutorOptions,
        on_failure: Callable[[str], None],
    ) -> None:
        self._context = context
        self._options = options
        self._on_failure = on_failure
        self._config = context.config
        self.failure: str | None = None
        self._closing = False
        self._lock = threading.Lock()
        self._actors: list[Any] = []
        self._facts: list[NodeFacts] = []
        self._group: PlacementGroup | None = None
        self._created = False
        self.driver = driver_rank(self._config)
        self._watcher: threading.Thread | None = None
        self._in_flight: dict[Any, tuple[dict[int, Any], float]] = {}  # by the driver's call
        self._last_answer = 0.0
        self._session = RaySession(options, self.fail, default_address="auto")

    # ------------------------------------------------------------------ start
    def start(self) -> int:
        """Build and load every rank; returns how many steps may be in flight. Raises with the failing rank's text."""
        world_size = self._config.world_size
        self._group = self._find_group(world_size)
        self._actors = [self._create_actor(rank) for rank in range(world_size)]
        self._launches = [actor.launch.options(num_returns=0) for actor in self._actors]
        # With a KV connector every rank answers: it names the transfers that ended there.
        everyone = range(world_size)
        answering = everyone if self._context.kv_connector is not None else [self.driver]
        self._collects = {
            rank: self._actors[rank].collect.options(concurrency_group=RESULTS)
            for rank in answering
        }
        plan_text = self._context.plan_text
        calls = {actor.describe.remote(plan_text): rank for rank, actor in enumerate(self._actors)}
        self._facts = self._gather(
            "start", calls, lambda _, text: msgspec.msgpack.decode(text, type=NodeFacts)
        )
        refuse_differences(
            plan_text, [(f"rank {rank}", facts) for rank, facts in enumerate(self._facts)]
        )
        self._watcher = threading.Thread(target=self._watch, name="ray ranks", daemon=True)
        self._watcher.start()
        run = RunDirectory()
        try:
            self._build(run)
            in_flight: list[int] = self.ask_all("load")
        finally:
            run.close()
        return min(in_flight)

    def _find_group(self, world_size: int) -> PlacementGroup:
        """The user's, the launcher's, or a new one: as close together as there is room."""
        if self._options.placement_group is not None:
            return placement.find_group(self._options.placement_group, world_size, "an engine")
        made = os.environ.get(GROUP_VARIABLE)
        if made:
            return PlacementGroup(ray.PlacementGroupID(bytes.fromhex(made)))
        gpu = placement.uses_gpu(self._config, placement.nodes(self._session.host))
        bundles = placement.rank_bundles(world_size, self._options.num_cpus, gpu=gpu)
        placement.check_cluster_holds(bundles, f"an engine of {world_size} ranks")
        self._created = True
        return placement.create_group("", bundles, "PACK")

    def _create_actor(self, rank: int) -> Any:
        assert self._group is not None  # noqa: S101 - found just before
        bundle = self._group.bundle_specs[rank]
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=rank
            ),
        }
        actor = ray.remote(concurrency_groups=RankActor.concurrency_groups)(RankActor)
        return actor.options(**options).remote(f"rank {self._context.engine_index}.{rank}")

    def _build(self, run: RunDirectory) -> None:
        """The worker of every rank. Their rendezvous is a file if all are on this node, else a port of rank 0's."""
        everyone = range(self._config.world_size)
        if len(everyone) == 1:
            self._ask("build", everyone, [self._spec(0, "")])
            return
        own = ray.get_runtime_context().get_node_id()
        if all(facts.node_id == own for facts in self._facts):
            url = f"file://{run.path}/rendezvous"
            self._ask("build", everyone, [self._spec(rank, url) for rank in everyone])
            return
        self._ask("build", everyone[:1], [self._spec(0, "")])
        (url,) = self._ask("open_rendezvous", everyone[:1], [self._facts[0].address])
        self._ask("build", everyone[1:], [self._spec(rank, url) for rank in everyone[1:]])

    def _spec(self, rank: int, rendezvous: str) -> RankSpec:
        assert self._group is not None  # noqa: S101 - found at the start
        has_own_gpu = bool(self._group.bundle_specs[rank].get("GPU"))
        return rank_spec(self._context, self._facts, rank, rendezvous, has_own_gpu=has_own_gpu)

    # ------------------------------------------------------------------ questions
    def ask_all(
        self, method: str, value: Any = None, timeout: float | None = None, kind: Any = Any
    ) -> list[Any]:
        """Call a method of every rank; one result of type `kind` per rank. Raises the first rank's error."""
        everyone = range(self._config.world_size)
        return self._ask(method, everyone, [value] * len(everyone), timeout, kind)

    def _ask(
        self,
        method: str,
        ranks: range,
        values: Sequence[Any],
        timeout: float | None = None,
        kind: Any = Any,
    ) -> list[Any]:
        def read(rank: int, payload: bytes) -> Any:
            answer = msgspec.msgpack.decode(payload, type=Answer)
            if answer.failure is not None:
                raise answer.failure.error(self.label(rank))
            return msgspec.convert(answer.value, kind)

        calls = {
            self._actors[rank].ask.remote(method, msgspec.msgpack.encode(value)): rank
            for rank, value in zip(ranks, values, strict=True)
        }
        return self._gather(method, calls, read, timeout)

    def _gather(
        self,
        what: str,
        calls: dict[Any, int],
        read: Callable[[int, bytes], Any],
        timeout: float | None = None,
    ) -> list[Any]:
        """Collect the answers of the ranks in `calls`, in their order, up to the first failure. Raises TimeoutError
        that names late ranks.
        """
        timeout = START_SHARE * self._config.start_timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        pending = dict(calls)
        results = {}
        while pending:
            self.check()
            done = self._ready(list(pending), min(WAIT_S, deadline - time.monotonic()))
            for call in done:
                rank = pending.pop(call)
                results[rank] = read(rank, self.fetch(rank, call))
            if not done and time.monotonic() > deadline:
                late = ", ".join(map(self.label, pending.values()))
                raise TimeoutError(f"'{what}' was not answered within {timeout:g} s by {late}")
        self._last_answer = time.monotonic()
        return [results[rank] for rank in calls.values()]

    def check_health(self, timeout: float, recent: float) -> None:
        """Check without waiting for steps in flight; query the ranks only if idle and silent for `recent` seconds."""
        self.check()
        now = time.monotonic()
        if not self._in_flight:
            if now >= self._last_answer + recent:
                self.ask_all("check_health", timeout=timeout)
            return
        calls, launched = next(iter(self._in_flight.values()))
        late = [self.label(rank) for rank, call in calls.items() if not self._ready([call], 0.0)]
        if late and now >= max(launched, self._last_answer) + timeout:
            raise TimeoutError(
                f"a step was not answered within {timeout:g} s by {', '.join(late)}: "
                "it or a rank that it waits for hangs"
            )

    def _ready(self, calls: list[Any], timeout: float) -> list[Any]:
        """Those that are done. Raises EngineDeadError without a connection."""
        try:
            return ready(calls, timeout)
        except Disconnected as error:
            self.fail(self._session.lost or str(error))
            raise EngineDeadError(self.failure or str(error)) from error

    def fetch(self, rank: int, call: Any) -> Any:
        """The result of a call that is done. Raises EngineDeadError when the actor is gone."""
        try:
            return ray.get(call)
        except (RayError, SystemExit) as error:
            reason = f"{self.label(rank)} is gone: {words(error)}"
            self.fail(reason)
            raise EngineDeadError(self.failure or reason) from error

    # ------------------------------------------------------------------ steps
    def launch(self, frames: list[bytes]) -> dict[int, Any]:
        """Send one step to every rank; returns the references to the results, by rank: the driver's, at least."""
        self.check()
        shared = len(self._actors) > 1 and sum(map(len, frames)) > SHARED_BYTES
        message = ray.put(frames) if shared else frames
        for launch in self._launches:
            launch.remote(message)
        calls = {rank: collect.remote() for rank, collect in self._collects.items()}
        self._in_flight[calls[self.driver]] = (calls, time.monotonic())
        return calls

    def is_done(self, calls: Mapping[int, Any]) -> bool:
        """Return True if all answers are available without waiting."""
        with contextlib.suppress(EngineDeadError):
            return self.failure is not None or all(
                self._ready([call], 0.0) for call in calls.values()
            )
        return True

    def wait(
        self, calls: Mapping[int, Any], step_id: int, timeout: float | None
    ) -> dict[int, list[bytes]]:
        """The frames of each rank's answer to a step, a ModelRunnerOutput.

        Raises the worker's exception with its message; EngineDeadError when a rank is gone or hangs for `step_timeout`
        seconds; TimeoutError after `timeout` seconds.
        """
        started = time.monotonic()
        answers = {
            rank: self._wait_for(rank, call, step_id, started, timeout)
            for rank, call in calls.items()
        }
        self._in_flight.pop(calls[self.driver], None)
        self._last_answer = time.monotonic()
        return answers

    def _wait_for(
        self, rank: int, call: Any, step_id: int, started: float, timeout: float | None
    ) -> list[bytes]:
        limit = self._config.step_timeout
        while not self._ready([call], WAIT_S if timeout is None else min(WAIT_S, timeout)):
            self.check()
            waited = time.monotonic() - started
            if waited >= limit:
                self.fail(
                    f"step {step_id} was not answered within {limit:g} s by {self.label(rank)}: it or a rank that it "
                    "waits for hangs, or --step-timeout is too short"
                )
            elif timeout is not None and waited >= timeout:
                raise TimeoutError(f"step {step_id} was not answered within {timeout:g} s")
        frames: list[bytes] = self.fetch(rank, call)
        if frames[0] != OK:
            self._wait_for_cause()
            raise msgspec.msgpack.decode(frames[0], type=Failure).error(self.label(rank))
        return frames[1:]

    def _wait_for_cause(self) -> None:
        """Raise EngineDeadError if a rank turns out to be dead: the errors of others are consequences."""
        if len(self._actors) > 1:
            deadline = time.monotonic() + 3 * GRACE_S
            while time.monotonic() < deadline:
                self.check()
                time.sleep(GRACE_S / 10)

    # ------------------------------------------------------------------ failure and end
    def label(self, rank: int) -> str:
        """A rank in a message: number, node and process."""
        if rank >= len(self._facts):
            return f"rank {rank}"
        return f"rank {rank} (node {self._facts[rank].label()}, pid {self._facts[rank].pid})"

    def check(self) -> None:
        """Raise EngineDeadError if a rank is gone, or this process's connection to Ray is."""
        if self.failure is None and not self._session.alive:
            self.fail(self._session.lost or DISCONNECTED)
        if self.failure is not None:
            raise EngineDeadError(self.failure)

    def fail(self, reason: str) -> None:
        """Record the reason of the engine's failure, and report it; only the first reason counts."""
        with self._lock:
            if self.failure is not None or self._closing:
                return
            self.failure = reason
        logger.error("%s", reason)
        self._on_failure(reason)

    def _watch(self) -> None:
        """Notice ranks that end, or fail in a step whose result is not collected."""
        lives = {
            actor.life.options(concurrency_group=LIFE).remote(): rank
            for rank, actor in enumerate(self._actors)
        }
        with contextlib.suppress(EngineDeadError):  # it was reported when it was raised
            while not self._closing:
                if self._ready(list(lives), WAIT_S):
                    self._report(lives)
                    return

    def _report(self, lives: Mapping[Any, int]) -> None:
        """Report the reason of the engine's end: a dead rank before the errors of ranks that wait for it."""
        if len(lives) > 1:
            time.sleep(GRACE_S)
        ended = [(rank, life) for life, rank in lives.items() if self._ready([life], 0.0)]
        reasons = [f"{self.label(rank)}: {self.fetch(rank, life)}" for rank, life in ended]
        self.fail(reasons[0])

    def close(self) -> None:
        """Stop every rank, remove the group if it is ours, disconnect if we connected. Idempotent."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
        if self._session.alive:
            self._stop_actors()
            if self._created and self._group is not None:
                placement.remove_group(self._group)
        elif ray.is_initialized() and self._actors:
            leaves = [actor.leave.options(concurrency_group=LIFE) for actor in self._actors]
            bounded(
                lambda: ray.wait([leave.remote() for leave in leaves], timeout=WAIT_S),
                RELEASE_TIMEOUT_S,
            )
        self.failure = self.failure or "the executor is shut down"
        if self._watcher is not None:
            self._watcher.join(RELEASE_TIMEOUT_S)
        self._session.close()

    def _stop_actors(self) -> None:
        timeout = (
            STOP_TIMEOUT_S if self.failure is None else FAILED_STOP_TIMEOUT_S
        )  # they may wait for a dead one
        stopping = [
            actor.ask.remote("shutdown", msgspec.msgpack.encode(None)) for actor in self._actors
        ]
        if stopping:
            bounded(
                lambda: ray.wait(stopping, num_returns=len(stopping), timeout=timeout),
                RELEASE_TIMEOUT_S,
            )
        for actor in self._actors:
            bounded(functools.partial(ray.kill, actor), RELEASE_TIMEOUT_S)
