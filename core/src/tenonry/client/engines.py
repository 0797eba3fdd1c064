"""The engines of a front end: the parts that it uses, and engines that it owns. Front end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from tenonry.client.core_client import CoreClient
from tenonry.client.start import announce, engine_info, resolve_front_end
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry.info import EngineInfo, ModelInfo
from tenonry.interfaces.launcher import FIRST_STANDBY, Death
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
    """Engines of a front end. Known after construction: `plan`, `model`, `client` (the link to the engines) and
    `stats`, which receives their numbers. The front end is the client `index` of `count` of the owner.

    `info` is set by `start`, and replaced as a whole when the number of engines changes.
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
        """Start the engines and return when they are ready; `events` receives their events from now on.

        Raises LaunchError, ConfigError or EngineDeadError.
        """

    def listen(  # noqa: B027 - an owner needs nothing of it
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]
    ) -> None:
        """Accept requests on this loop from now on; `take` returns the numbers since its last call, by engine."""

    @abstractmethod
    def pids(self) -> dict[str, int]:
        """Running processes: name → process id."""

    async def ask_others(
        self, question: Literal["drained", "forget_media"], patience_s: float = 0.0
    ) -> int:
        """Call a method of EngineEvents in the other front ends of these engines; returns the sum of the results."""
        return 0

    @abstractmethod
    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engines, or detach from those of another owner; report the last numbers, close the sockets.
        Idempotent.
        """


class OwnedEngines(Engines):
    """Resolves plugins and model, and starts engines and stat loggers; `stat_loggers`: additional ones by name.

    `coordinated`: run a coordinator even where one front end with independent engines needs none. `fleets`: new engines
    start in the first one; among engines of one index, the one whose epoch the client knows is current. `lock`: held
    while an index changes its engine.
    """

    events: EngineEvents  # set by `start`

    def __init__(
        self,
        config: EngineConfig,
        stat_loggers: dict[str, StatLogger] | None = None,
        context: str = "library",
        *,
        coordinated: bool = False,
    ) -> None:
        if stat_loggers:  # explicit loggers imply records
            config = config.replaced(log_stats=True)
        self.manager, self.plan, self.model = resolve_front_end(config, launcher=True)
        self.lock = threading.RLock()
        self.config = config
        self._context = context
        recovery: type[EngineRecovery] = load_class(self.plan.get("engine_recovery"))
        # Loggers may hold a port, and there may be no engines.
        with contextlib.ExitStack() as parts:
            self.stats = StatManager(config, self.plan, stat_loggers)
            parts.callback(self.stats.shutdown)
            self._epochs = itertools.count(1)
            self._coordinated = coordinated
            self.fleets: list[EngineFleet] = []
            self.add_fleet(config, self.plan)
            self.client = CoreClient(
                config, self.plan, self._lost, self.fleet.curve, recovers=recovery.restarts(config)
            )
            parts.callback(self.fleet.shutdown)
            self.fleet.prepare()
            parts.pop_all()

    def add_fleet(self, config: EngineConfig, plan: PluginPlan) -> EngineFleet:
        """Return an additional fleet without engines. It ends with the others. Raises ConfigError."""
        fleet = EngineFleet(
            config, self.model, plan, self._died, self._epochs, coordinated=self._coordinated
        )
        self.fleets.append(fleet)
        return fleet

    @property
    def fleet(self) -> EngineFleet:
        return self.fleets[0]

    def _died(self, index: int, death: Death) -> None:
        """Report the death of an engine with an index; `switch` checks engines without one. From any thread."""
        with self.lock:
            link = self.client.engines.get(index)
            has_index = link is not None and link.epoch == death.epoch
            if has_index or not death.epoch or index >= FIRST_STANDBY:
                self.events.on_death(index, death)

    def _lost(self, index: int, death: Death) -> None:
        """Handle the end of an engine that it reported itself."""
        for fleet in self.fleets:
            fleet.lost(index, death)

    def start(self, events: EngineEvents) -> None:
        self.events = events
        rank = self.config.data_parallel_rank
        ranks = range(self.config.data_parallel_size)
        if rank is not None:
            ranks = range(rank, rank + 1)
        with contextlib.closing(self.fleet.run_directory()) as directory:
            self.expect(self.fleet.start(ranks, self.bind(directory)))
            while self.is_connecting(self.fleet, ranks):
                self.client.receive()  # only first frames of engines can arrive yet
                time.sleep(POLL_S)
        with self.lock:
            self.fleet.check_running(ranks)
            self.client.take_over(ranks, self.fleet.coordinator)
        self.learn()
        for facts in self.fleet.engines.values():
            for kind, found in facts.resolved.items():
                logger.info("engine %d uses %s %s", facts.index, kind, found)
        announce(self.manager, self.info)

    def use(self, config: EngineConfig, plan: PluginPlan, manager: PluginManager) -> None:
        """Set the configuration and plan of engines started from now on."""
        self.config = config
        self.plan = plan
        self.manager = manager

    def pids(self) -> dict[str, int]:
        """Process ids; those of the first fleet take precedence."""
        found: dict[str, int] = {}
        for fleet in self.fleets:
            found = fleet.pids() | found
        return found

    def bind(self, directory: RunDirectory) -> ClientAddresses:
        """Bind addresses for starting engines, in this folder or at TCP ports."""
        return [self.client.bind(self.fleet.address(directory), self.fleet.address(directory))]

    def expect(self, facts: Sequence[EngineFacts]) -> None:
        """Register ready engines, which connect within `CONNECT_TIMEOUT_S`."""
        self.client.expect(facts)
        self._connect_by = time.monotonic() + CONNECT_TIMEOUT_S

    def is_connecting(self, fleet: EngineFleet, indexes: Iterable[int]) -> bool:
        """True while an expected engine has not connected both sockets. Raises LaunchError for one that ended."""
        fleet.check_running(indexes)
        missing = self.client.unconnected()
        if missing and time.monotonic() > self._connect_by:
            raise LaunchError(
                f"engines {sorted(missing)} are ready but did not connect their sockets"
            )
        return bool(missing)

    def learn(self) -> None:
        """Renew `info` and publish the configuration. Raises LaunchError without an engine."""
        links = self.client.engines.values()
        facts = [
            link.facts for link in links if not link.dead and link.index not in self.client.leaving
        ]
        if not facts:
            raise LaunchError("no engine is left: " + "; ".join(map(str, self.fleet.dead.values())))
        self.info = engine_info(self.config, self.model, self.plan, facts, self._context)
        self.stats.initialized(self.info)
        self.events.on_change(self.config)

    def shutdown(self, timeout: float = 5.0) -> None:
        for fleet in self.fleets:
            fleet.shutdown(timeout)
        self.client.close()
        self.stats.shutdown()
