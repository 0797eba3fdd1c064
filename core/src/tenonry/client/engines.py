"""The engines of a front end: what it needs to know of them, and engines that it owns. Front end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal

from tenonry.client.core_client import CoreClient
from tenonry.client.start import announce, engine_info, resolve_front_end
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import LaunchError, Unsupported
from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.launcher import Death
from tenonry.interfaces.recovery import EngineEvents, EngineRecovery
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import ClientAddresses, EngineFacts
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.stats import IterationStats
from tenonry.transport.folder import RunDirectory

logger = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.005


class Engines(ABC):
    """Engines of a front end, as known once this is built: `plan`, `model`, `client`, the link to them, and
    `stats`, which takes their numbers. The front end is the client `index` of `count` beside the owner.

    `info` is there after `start`, and replaced as a whole when the number of engines changes.
    """

    plan: PluginPlan
    model: ModelInfo
    stats: StatManager
    client: CoreClient
    info: EngineInfo
    index: int = 0
    count: int = 1

    @abstractmethod
    def start(self, events: EngineEvents) -> None:
        """Return when the engines can be used; `events` receives what happens to them from now on.

        Raises LaunchError, ConfigError or EngineDeadError.
        """

    def listen(  # noqa: B027 - an owner needs nothing of it
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]
    ) -> None:
        """Requests are taken on this loop from now on; `take` returns the numbers since its last call, by engine."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Processes that run: name → process id."""

    async def ask_others(self, question: Literal["num_requests", "forget_media"]) -> int:
        """Call that method of EngineEvents in the other front ends of these engines; returns the sum of the answers."""
        return 0

    async def replace(self, changes: Mapping[str, Any]) -> None:
        """Let the owner replace the engines. Raises what an EngineRecovery raises."""
        raise Unsupported(
            "these engines cannot be replaced while they run: they serve a group of servers (data_parallel_rank); "
            "start another group with the changes, and move clients there"
        )

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engines, or leave them to their owner; report the last numbers, close the sockets. Idempotent."""


class OwnedEngines(Engines):
    """Resolves plugins and model, and starts engines and stat loggers; `stat_loggers` are more of those, by name.

    `coordinated`: run a coordinator even where one front end with independent engines needs none.
    """

    _events: EngineEvents  # from `start` on

    def __init__(
        self,
        config: EngineConfig,
        stat_loggers: dict[str, StatLogger] | None = None,
        context: str = "library",
        *,
        coordinated: bool = False,
    ) -> None:
        if stat_loggers:  # a caller that brings a logger wants records
            config = config.replaced(log_stats=True)
        self.manager, self.plan, self.model = resolve_front_end(config, launcher=True)
        self.config, self._context = config, context
        recovery: type[EngineRecovery] = load_class(self.plan.get("engine_recovery"))
        # Loggers may hold a port, and there may be no engines.
        with contextlib.ExitStack() as parts:
            self.stats = StatManager(config, self.plan, stat_loggers)
            parts.callback(self.stats.shutdown)
            self.fleet = EngineFleet(
                config, self.model, self.plan, self._died, coordinated=coordinated
            )
            self.client = CoreClient(
                config, self.plan, self._lost, self.fleet.curve, recovers=recovery.restarts(config)
            )
            parts.callback(self.fleet.shutdown)
            self.fleet.prepare()
            parts.pop_all()

    def _died(self, index: int, death: Death) -> None:
        self._events.on_death(index, death)

    def _lost(self, index: int, death: Death) -> None:
        """An engine reports its own end."""
        self.fleet.owner(index).lost(index, death)

    def start(self, events: EngineEvents) -> None:
        self._events = events
        rank = self.config.data_parallel_rank
        ranks = range(self.config.data_parallel_size)
        if rank is not None:
            ranks = range(rank, rank + 1)
        with contextlib.closing(self.fleet.run_directory()) as meeting:
            self._join(self.fleet.start(ranks, self._bind(meeting)))
            while self._is_connecting():
                self.client.receive()  # only the engines' first frames can come yet
                time.sleep(POLL_S)
        self.learn()
        for facts in self.fleet.engines.values():
            for kind, found in facts.resolved.items():
                logger.info("engine %d uses %s %s", facts.index, kind, found)
        announce(self.manager, self.info)

    def use(self, config: EngineConfig, plan: PluginPlan, manager: PluginManager) -> None:
        """Engines that are started from now on get these."""
        self.config, self.plan, self.manager = config, plan, manager

    async def grow(
        self, indexes: Sequence[int], take_place: Callable[[int], Awaitable[bool]] | None = None
    ) -> None:
        """Start engines under these numbers, but those for which `take_place` finds one that is ready; return when they
        can be used. Raises LaunchError.
        """
        try:
            for index in indexes:
                self.fleet.lent.pop(index, None)
            missing = indexes
            if take_place is not None:
                missing = [index for index in indexes if not await take_place(index)]
            self.client.leaving.update(indexes)  # until they can be used
            if missing:
                with contextlib.closing(self.fleet.run_directory()) as meeting:
                    self._join(await self.start_some(self.fleet, missing, meeting))
                    await self.wait_until_connected()
            await self._events.on_join(self.fleet, indexes)
            self.client.leaving.difference_update(indexes)
            self.learn()
        except BaseException as error:
            for index in indexes:
                self.client.remove_engine(index, str(error))
            await asyncio.to_thread(self.fleet.stop, indexes)
            raise

    async def start_some(
        self, fleet: EngineFleet, indexes: Sequence[int], meeting: RunDirectory
    ) -> list[EngineFacts]:
        """Start engines in a thread. It cannot be cancelled: a caller that is stops them."""
        start = asyncio.ensure_future(asyncio.to_thread(fleet.start, indexes, self._bind(meeting)))
        try:
            facts = await asyncio.shield(start)
        except asyncio.CancelledError:
            fleet.is_cancelled = True
            raise
        finally:
            await asyncio.wait([start])
        self._connect_by = time.monotonic() + CONNECT_TIMEOUT_S
        return facts

    async def wait_until_connected(self) -> None:
        """Until engines that were started have connected their sockets. Raises LaunchError."""
        while self._is_connecting():  # noqa: ASYNC110 - sockets raise no event for it
            await asyncio.sleep(POLL_S)

    def pids(self) -> dict[str, int]:
        return self.fleet.pids()

    def _bind(self, meeting: RunDirectory) -> ClientAddresses:
        return [self.client.bind(self.fleet.address(meeting), self.fleet.address(meeting))]

    def _join(self, facts: Sequence[EngineFacts]) -> None:
        self.client.add_engines(facts, self.fleet.coordinator)
        self._connect_by = time.monotonic() + CONNECT_TIMEOUT_S
        for engine in facts:
            if engine.index in self.fleet.dead:  # it ended as soon as it was ready
                raise LaunchError(str(self.fleet.dead[engine.index]))

    def _is_connecting(self) -> bool:
        missing = self.client.unconnected()
        if missing and time.monotonic() > self._connect_by:
            raise LaunchError(
                f"engines {sorted(missing)} are ready but did not connect their sockets"
            )
        return bool(missing)

    def learn(self) -> None:
        """Renew `info`, and pass on the configuration. Raises LaunchError if there is no engine."""
        facts = [
            facts
            for index, facts in self.fleet.placed().items()
            if index in self.client.engines.keys() - self.client.leaving
        ]
        if not facts:
            raise LaunchError("no engine is left: " + "; ".join(map(str, self.fleet.dead.values())))
        self.info = engine_info(self.config, self.model, self.plan, facts, self._context)
        self.stats.initialized(self.info)
        self._events.on_change(self.config)

    def shutdown(self, timeout: float = 5.0) -> None:
        self.fleet.shutdown(timeout)
        self.client.close()
        self.stats.shutdown()
