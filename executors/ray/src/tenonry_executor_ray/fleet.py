"""All engines of one front end in a Ray cluster: their groups, actors and ends. Front end; imports Ray."""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.interfaces.launcher import EngineSpec
from tenonry.launch.process import ENGINE_ROLE, watch_options
from tenonry.launch.supervise import describe_exit
from tenonry_executor_ray import placement
from tenonry_executor_ray.engine_actor import DEVICES, EngineActor, gpu_ids
from tenonry_executor_ray.groups import EngineGroup, EngineGroups
from tenonry_executor_ray.options import GROUP_VARIABLE, RayLauncherOptions
from tenonry_executor_ray.session import (
    DISCONNECTED,
    Disconnected,
    RaySession,
    bounded,
    ready,
    words,
)
from tenonry_executor_ray.wire import NodeFacts, refuse_differences

logger = logging.getLogger("tenonry.ray")
CALLS_AT_ONCE = 8  # of one actor: `wait` occupies one for good
WAIT_S = 0.5
POLL_S = 0.05
STOP_GRACE_S = 5.0
KILL_GRACE_S = 2.0
KILLED = -9  # the exit code of an engine whose actor is gone
FAILED = 1  # and of one whose end could not be observed


class Engine:
    """One engine: its group, its actor, and its end."""

    __slots__ = ("actor", "exit_code", "facts", "group", "life", "name", "pid")

    def __init__(self, name: str, group: EngineGroup) -> None:
        self.name = name
        self.group = group
        self.actor: Any = None
        self.facts = NodeFacts(node="an unknown node")
        self.life: Any = None  # resolves when the engine ends, or its actor does
        self.pid = 0
        self.exit_code: int | None = None


class Fleet:
    """Starts, watches and stops engines; one thread watches them all (RA-4, Q3)."""

    role = ENGINE_ROLE

    def __init__(self, config: EngineConfig, options: RayLauncherOptions) -> None:
        self._config = config
        self._engines: dict[str, Engine] = {}
        self._callbacks: list[Callable[[str, int, int], None]] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self._session = RaySession(options, self._head_is_lost)
        self._groups = EngineGroups(config, options, self._session.host)

    @property
    def host(self) -> str:
        return self._session.host

    # ------------------------------------------------------------------ start
    def start(self, specs: Sequence[EngineSpec]) -> None:
        """Start engines, once every actor exists with the right versions (RA-4)."""
        if not self._session.alive:
            raise LaunchError(f"no engine can be started: {self._session.lost or DISCONNECTED}")
        names = [f"engine {spec.engine_index}" for spec in specs]
        engines = [
            Engine(name, group)
            for name, group in zip(names, self._groups.provide(specs), strict=True)
        ]
        try:
            for engine in engines:
                self._create_actor(engine)
            plan_text = specs[0].plan_text
            texts = self._gather(
                engines, "built", [engine.actor.describe.remote(plan_text) for engine in engines]
            )
            for engine, text in zip(engines, texts, strict=True):
                engine.facts = msgspec.msgpack.decode(text, type=NodeFacts)
            refuse_differences(plan_text, [(engine.name, engine.facts) for engine in engines])
            self._run(engines, specs)
        except BaseException:
            self._release(engines, STOP_GRACE_S)
            raise

    def _create_actor(self, engine: Engine) -> None:
        """Create the engine's actor on the last bundle of its group (RA-3)."""
        index = self._config.world_size
        group = engine.group.group
        options = {
            "num_cpus": group.bundle_specs[index].get("CPU", 0),
            "max_concurrency": CALLS_AT_ONCE,
            "max_restarts": 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=index
            ),
        }
        engine.actor = ray.remote(EngineActor).options(**options).remote(engine.name, self.role)

    def _run(self, engines: list[Engine], specs: Sequence[EngineSpec]) -> None:
        calls = []
        watch = json.dumps(watch_options(self._config))
        for engine, spec in zip(engines, specs, strict=True):
            text = msgspec.json.encode(spec).decode()
            environment = json.dumps(self._environment(engine))
            calls.append(engine.actor.start.remote(text, environment, watch))
        pids = self._gather(engines, "started", calls)
        for engine, pid in zip(engines, pids, strict=True):
            engine.pid = pid
            engine.life = engine.actor.wait.remote()
            facts = engine.facts
            text = "%s runs on node %s, pid %d%s"
            logger.info(text, engine.name, facts.label(), pid, facts.priority())
        with self._lock:
            self._engines.update((engine.name, engine) for engine in engines)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="ray engines", daemon=True)
            self._watcher.start()

    def _environment(self, engine: Engine) -> dict[str, str]:
        """Ray-related environment of the engine's process: the cluster, its group, and the GPUs of the group."""
        group = engine.group.group
        found = {"RAY_ADDRESS": self._session.head, GROUP_VARIABLE: group.id.hex()}
        if self._groups.gpu and not self._groups.ranks_are_actors:
            strategies = (
                PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
                for index in range(self._config.world_size)
            )
            asking = ray.remote(num_gpus=1, num_cpus=0, max_retries=0)(gpu_ids)
            answers = [
                asking.options(scheduling_strategy=strategy).remote() for strategy in strategies
            ]
            found[DEVICES] = ",".join(
                gpu
                for ids in self._gather([engine] * len(answers), "given its GPUs", answers)
                for gpu in ids
            )
        return found

    def _gather(self, engines: Sequence[Engine], what: str, calls: list[Any]) -> list[Any]:
        """The results of calls to actors. Raises LaunchError that names the engine, its node and the cause."""
        deadline = time.monotonic() + self._config.start_timeout
        results = []
        for engine, call in zip(engines, calls, strict=True):
            try:
                results.append(ray.get(call, timeout=max(0.0, deadline - time.monotonic())))
            except GetTimeoutError:
                raise LaunchError(
                    f"{engine.name} was not {what} within {self._config.start_timeout:g} s; raise --start-timeout if "
                    "the cluster is slow"
                ) from None
            except RayError as error:
                node = placement.address_of(engine.group.group, self._config.world_size)
                raise LaunchError(
                    f"{engine.name} on node {node} could not be {what}: {words(error)}"
                ) from error
        return results

    # ------------------------------------------------------------------ watch
    def on_exit(self, callback: Callable[[str, int, int], None]) -> None:
        self._callbacks.append(callback)

    def finished(self) -> dict[str, int]:
        with self._lock:
            return {
                name: engine.exit_code
                for name, engine in self._engines.items()
                if engine.exit_code is not None
            }

    def pids(self) -> dict[str, int]:
        with self._lock:
            return {
                name: engine.pid
                for name, engine in self._engines.items()
                if engine.exit_code is None
            }

    def _watch(self) -> None:
        """Fetch every end: a run reference that is not fetched hides a dead actor (Q3).

        It never blocks within Ray, which would end this process if its owner disconnected during the wait.
        """
        while not self._closing.is_set() and self._session.lost is None:
            with self._lock:
                living = {
                    engine.life: engine
                    for engine in self._engines.values()
                    if engine.exit_code is None
                }
            try:
                done = ready(list(living), 0.0) if living else []
            except Disconnected as error:
                self._head_is_lost(str(error))
                return
            if not done:
                self._closing.wait(POLL_S)
            for life in done:
                if not ray.is_initialized():
                    break  # as the next turn reports
                self._ended(living[life], *_end_of(life))
                if ray.is_initialized():  # it may be out of reach only
                    bounded(functools.partial(ray.kill, living[life].actor), STOP_GRACE_S)

    def _ended(self, engine: Engine, code: int, reason: str) -> None:
        with self._lock:
            if engine.exit_code is not None or self._engines.get(engine.name) is not engine:
                return  # reported already, or stopped by `stop`
            engine.exit_code = code
        if self._closing.is_set():
            return
        logger.error(
            "%s (pid %d) on node %s ended: %s",
            engine.name,
            engine.pid,
            engine.facts.label(),
            reason,
        )
        for callback in list(self._callbacks):
            callback(engine.name, engine.pid, code)

    def _head_is_lost(self, reason: str) -> None:
        """Everything is lost with the head; disconnect, because Ray would end this process a minute later."""
        with self._lock:
            living = [engine for engine in self._engines.values() if engine.exit_code is None]
        for engine in living:
            self._ended(engine, FAILED, reason)
        if living and ray.is_initialized():
            bounded(
                lambda: ray.wait(
                    [engine.actor.leave.remote() for engine in living], timeout=WAIT_S
                ),
                STOP_GRACE_S,
            )
        self._session.close()

    # ------------------------------------------------------------------ stop
    def stop(self, names: Sequence[str], timeout: float) -> None:
        """Stop some engines and forget them; no callback is called for them."""
        with self._lock:
            engines = [self._engines.pop(name) for name in names if name in self._engines]
        self._release(engines, timeout)

    def close(self, timeout: float) -> None:
        """Stop all engines, release actors and groups, disconnect if we connected (RA-7)."""
        self._closing.set()
        self.stop(list(self._engines), timeout)
        if self._watcher is not None:
            self._watcher.join(STOP_GRACE_S)
        self._session.close()

    def _release(self, engines: Sequence[Engine], timeout: float) -> None:
        if self._session.alive:
            calls = [
                engine.actor.stop.remote(timeout)
                for engine in engines
                if engine.pid and engine.exit_code is None
            ]
            if calls:  # their own deadline is `timeout`, after which they kill
                limit = timeout + KILL_GRACE_S
                bounded(
                    lambda: ray.wait(calls, num_returns=len(calls), timeout=limit),
                    timeout + STOP_GRACE_S,
                )
            for engine in engines:
                if engine.actor is not None:
                    bounded(functools.partial(ray.kill, engine.actor), STOP_GRACE_S)
        if self._session.alive:  # it may have been lost in the meantime
            for engine in engines:
                engine.group.release()


def _end_of(life: Any) -> tuple[int, str]:
    """(exit code, reason) of an engine whose reference resolved."""
    try:
        code: int = ray.get(life)
    except RayActorError as error:
        return KILLED, f"its actor died ({words(error)})"
    except (RayError, SystemExit) as error:
        return FAILED, f"its actor cannot be reached ({words(error)})"
    return code, describe_exit(code)
