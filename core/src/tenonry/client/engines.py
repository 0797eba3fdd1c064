"""The engines of a front end: what it needs to know of them, and engines that it owns. Front end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from tenonry.client.core_client import CoreClient
from tenonry.client.load_balancer import EngineChooser
from tenonry.client.start import announce, describe, engine_info, resolve_front_end
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.continuity import fallbacks
from tenonry.continuity.recovery import Recovery
from tenonry.continuity.restarts import Restarts
from tenonry.errors import ConfigError, LaunchError, Unsupported
from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import CoordinatorFacts, EngineFacts, EngineZmqAddresses
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan, load_class
from tenonry.replacement.changes import changed
from tenonry.replacement.fleets import Fleets
from tenonry.replacement.replacement import Replacement, check_layout, check_present
from tenonry.replacement.standbys import Standbys, check_supported
from tenonry.stats import IterationStats, RecoveryStats, StatRecord
from tenonry.transport.folder import RunDirectory

logger = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 10.0
POLL_S = 0.005
MAX_ENGINES = 1024


class Engines(ABC):
    """What a front end knows of its engines once this is built: `plan`, `model`, `client`, the link to them, and
    `stats`, which takes their numbers. The front end is the client `index` of `count` beside the owner.

    `info` is there after `start`, and replaced as a whole when the number of engines changes. `on_death(engine index,
    death)` is called, from any thread, when one ended unasked; `on_join` is awaited when engines were added, before
    they get requests; `on_switch(indexes, coordinator)` moves streams to newcomers; `on_change(configuration)` follows
    each change. All are set before `start` is called.
    """

    plan: PluginPlan
    model: ModelInfo
    stats: StatManager
    client: CoreClient
    info: EngineInfo
    index: int = 0
    count: int = 1
    on_death: Callable[[int, Death], None]
    on_join: Callable[..., Awaitable[None]]
    on_switch: Callable[[Sequence[int], CoordinatorFacts | None], None]
    on_change: Callable[[EngineConfig], None]

    @abstractmethod
    def start(self) -> None:
        """Return when the engines can be used. Raises LaunchError, ConfigError or EngineDeadError."""

    def listen(  # noqa: B027 - an owner needs nothing of it
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]
    ) -> None:
        """Requests are taken on this loop from now on; `take` returns the numbers since its last call, by engine."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Processes that run: name → process id."""

    @abstractmethod
    async def scale(self, size: int, drain_timeout: float) -> None:
        """Go on with `size` engines; raises Unsupported where their number is fixed."""

    async def replace(self, changes: Mapping[str, Any]) -> None:
        """Start engines with these changes, each of which takes the place of one that runs. Raises where all of those
        serve on.
        """
        raise Unsupported(
            "these engines cannot be replaced while they run: they serve a group of servers (data_parallel_rank); "
            "start another group with the changes, and move clients there"
        )

    @property
    def can_restart(self) -> bool:
        """Whether engines that died are started again."""
        return False

    def recover(  # noqa: B027 - nothing, where they are not started again
        self, recovery: Recovery, changes: Collection[str]
    ) -> None:
        """`recovery` takes their requests when they die. `changes`: by what they differ from ones just started."""

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engines, or leave them to their owner; report the last numbers, close the sockets. Idempotent."""


class OwnedEngines(Engines):
    """Resolves plugins and model, and starts engines and stat loggers; `stat_loggers` are more of those, by name.

    `coordinated`: run a coordinator even where one front end with independent engines needs none.
    """

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
        self._manager, self.plan, self.model = resolve_front_end(config, launcher=True)
        check_supported(config, self.model, load_class(self.plan.get("launcher")))
        self.config, self._context = config, context
        self.changes: Collection[str] = ()
        self.on_change = self.on_refused = lambda _: None
        self.on_moved: Callable[..., Awaitable[None]]
        self._fallbacks = fallbacks.fallbacks_of(config, self._manager)
        # Loggers may hold a port, and there may be no engines.
        with contextlib.ExitStack() as parts:
            self.stats = StatManager(config, self.plan, stat_loggers)
            parts.callback(self.stats.shutdown)
            self.fleets = Fleets(self.model, self._died, coordinated=coordinated)
            self.fleets.current = self.fleets.make(config, self.plan)
            chooser = EngineChooser(config, self.plan)
            self.client = CoreClient(chooser, self.fleets.lost, self.fleet.curve)
            self.standbys = Standbys(self, config.standby_engines)
            parts.callback(self.fleet.shutdown)
            self.fleet.prepare()
            parts.pop_all()

    def _died(self, index: int, death: Death) -> None:
        if index >= FIRST_STANDBY:
            self.standbys.died(index, death)
        else:
            self.on_death(index, death)

    @property
    def fleet(self) -> EngineFleet:
        """What starts engines."""
        return self.fleets.current

    def start(self) -> None:
        rank = self.config.data_parallel_rank
        ranks = range(self.config.data_parallel_size)
        if rank is not None:
            ranks = range(rank, rank + 1)
        with contextlib.closing(self.fleet.run_directory()) as meeting:
            self._join(self.fleet.start(ranks, self._bind(meeting)))
            while self._is_connecting():
                self.client.receive()  # only the engines' first frames can come yet
                time.sleep(POLL_S)
        self._learn()
        for facts in self.fleet.engines.values():
            for kind, found in facts.resolved.items():
                logger.info("engine %d uses %s %s", facts.index, kind, found)
        announce(self._manager, self.info)

    async def scale(self, size: int, drain_timeout: float) -> None:
        """Start engines, or let some finish and stop them, until `size` run. On the event loop that uses the client.

        Raises ConfigError, LaunchError, or TimeoutError if those that leave still have requests after `drain_timeout`.
        """
        while any(link.dead for link in self.client.engines.values()):  # noqa: ASYNC110 - until its requests have failed
            await asyncio.sleep(POLL_S)
        running = sorted(self.client.engines)
        if not 1 <= size <= MAX_ENGINES:
            raise ConfigError(f"{size} engines: at least 1 and at most {MAX_ENGINES} are possible")
        if size == len(running):
            logger.info("%d engines run already", size)
            return
        if self.model.needs_lockstep:
            raise ConfigError(
                f"the engines of {self.model.name} step together; their number is fixed while they run"
            )
        before = self.fleet.size
        self.fleet.size = size
        try:
            if size > len(running):
                unused = [index for index in range(MAX_ENGINES) if index not in running]
                joining = unused[: size - len(running)]
                self.fleet.remote.difference_update(joining)
                await self._grow(joining)
            else:
                await self._shrink(running[size:], drain_timeout)
        except BaseException:
            self.fleet.size = before
            raise

    @property
    def can_restart(self) -> bool:
        return self.config.engine_death == "restart"

    @property
    def num_together(self) -> int:
        """As many engines are started together, where one dies."""
        return self.config.data_parallel_size if self.model.needs_lockstep else 1

    def recover(self, recovery: Recovery, changes: Collection[str]) -> None:
        recovery.restarts = Restarts(
            recovery, self.restart, self.stats.record, recovery.lock, self.num_together
        )
        recovery.restarts.obstacles = changes
        recovery.restarts.num_at_once = lambda: self.standbys.num_at_once
        self.changes = changes
        self.on_moved = recovery.admit
        self.standbys.on_built = lambda index: self.on_join(self.fleet, [index])

    def listen(
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]
    ) -> None:
        self.standbys.listen(loop)

    async def restart(self, indexes: Sequence[int]) -> None:
        """Start engines that died, under their numbers, or let some that stand by take these; return when they can be
        used. Raises LaunchError.
        """
        for kind in list(self._fallbacks):
            if self.client.faults[self.plan.get(kind).name] >= fallbacks.MAX_FAULTS:
                self._fall_back(kind, indexes[0])
                await self.standbys.renew(self.config.standby_engines)
        await self._grow(indexes, self.standbys.take_place)
        self.standbys.fill()

    def _fall_back(self, kind: str, index: int) -> None:
        """Start engines with another plugin of this kind from now on, or without one."""
        self.config = fallbacks.fall_back(self.config, kind, self._fallbacks.pop(kind))
        self.plan = self._manager.plan(self.config)
        self.fleet.change(self.config, self.plan)
        self.note(index, fallbacks.counted(kind))

    def note(self, index: int, numbers: RecoveryStats) -> None:
        """Let stat loggers know what happened to an engine."""
        self.stats.record(StatRecord(engine_index=index, time=time.monotonic(), recovery=numbers))

    async def _grow(
        self, indexes: Sequence[int], take_place: Callable[[int], Awaitable[bool]] | None = None
    ) -> None:
        try:
            for index in indexes:
                self.fleets.owners.pop(index, None)
            missing = indexes
            if take_place is not None:
                missing = [index for index in indexes if not await take_place(index)]
            self.client.leaving.update(indexes)  # until they can be used
            if missing:
                with contextlib.closing(self.fleet.run_directory()) as meeting:
                    self._join(await self.start_some(self.fleet, missing, meeting))
                    await self.wait_until_connected()
            await self.on_join(self.fleet, indexes)
            self.client.leaving.difference_update(indexes)
            self._learn()
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

    async def replace(self, changes: Mapping[str, Any]) -> None:
        check_layout(self.config, self.model, self.fleets)
        check_present(self.client.awaited, self.changes)
        config = changed(self.config, changes)
        manager = PluginManager(config.plugins)
        plan = await asyncio.to_thread(manager.plan, config)
        check_supported(config, self.model, load_class(plan.get("launcher")))
        others = fallbacks.fallbacks_of(config, manager)
        plugins = [describe(each.records()) for each in (self.plan, plan)]
        logger.info("engines are replaced: %s becomes %s", *plugins)
        logger.info("settings %s become %s", self.config.describe(), config.describe())
        fleet = self.fleets.make(config, plan, self.fleet)
        self.fleets.successor = fleet
        try:
            await Replacement(self, fleet).run()
            before = self.fleets.succeed(fleet)
        finally:
            self.fleets.successor = None
        self.config = config
        self._manager = manager
        self._fallbacks = others
        self.plan = plan
        self.client.faults.clear()
        await asyncio.to_thread(before.shutdown)
        self.client.ports.unbind_unused()
        await self.standbys.renew(config.standby_engines)
        with contextlib.suppress(
            LaunchError
        ):  # one that has just died is started again, or ends everything
            self._learn()

    async def _shrink(self, indexes: Sequence[int], drain_timeout: float) -> None:
        if remote := sorted(self.fleet.remote.intersection(indexes)):
            raise ConfigError(f"engines {remote} belong to another node; stop that node instead")
        engines = self.client.engines
        deadline = time.monotonic() + drain_timeout
        self.client.leaving.update(indexes)
        try:
            while open_requests := sum(
                len(engines[index].requests) for index in indexes if index in engines
            ):
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        f"{open_requests} requests still run on engines {indexes} after {drain_timeout:g} s; "
                        "nothing changed"
                    )
                await asyncio.sleep(POLL_S)
            if not any(link.index not in indexes and not link.dead for link in engines.values()):
                raise LaunchError(
                    f"the engines that were to stay died; engines {indexes} stay instead"
                )
        except BaseException:
            self.client.leaving.difference_update(indexes)
            raise
        for index in indexes:  # one that died meanwhile is gone already
            self.client.remove_engine(index, "it was scaled away")
        self._learn()
        await asyncio.to_thread(self.fleets.stop, indexes)

    def pids(self) -> dict[str, int]:
        return self.fleets.pids()

    def _bind(self, meeting: RunDirectory) -> EngineZmqAddresses:
        source, sink = self.client.bind(self.fleet.address(meeting), self.fleet.address(meeting))
        return EngineZmqAddresses(inputs=[source], outputs=[sink])

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

    def _learn(self) -> None:
        facts = [
            facts
            for index, facts in self.fleets.engines().items()
            if index in self.client.engines.keys() - self.client.leaving
        ]
        if not facts:
            raise LaunchError("no engine is left: " + "; ".join(map(str, self.fleet.dead.values())))
        self.info = engine_info(self.config, self.model, self.plan, facts, self._context)
        self.stats.initialized(self.info)
        self.on_change(self.config)

    def shutdown(self, timeout: float = 5.0) -> None:
        self.fleets.shutdown(timeout)
        self.client.close()
        self.stats.shutdown()
