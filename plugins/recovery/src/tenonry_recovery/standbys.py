"""Standbys: built, idle engines that immediately replace a dead one. Front end or supervisor."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, EngineDeadError, EngineGenerateError, LaunchError
from tenonry.gpus import visible_devices
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import FIRST_STANDBY, Death, Launcher, engine_name
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.stats import RecoveryStats
from tenonry_recovery.budget import RestartBudget
from tenonry_recovery.replacement import Owner
from tenonry_recovery.settings import RecoverySettings
from tenonry_scale_out.joining import joining

logger = logging.getLogger("tenonry.recovery")
# Streams that have just moved compute their prompts again, and a start takes as much of a CPU as they do.
DELAY_S = 1.0
POLL_S = 0.5
ANSWER_TIMEOUT_S = 5.0
LAST_INDEX = (1 << 16) - 1
FORMER = "former "  # before the name of a process whose place another one took


class Standbys:
    """Keeps `wanted` engines ready from `listen` on. Event loop.

    Each has a separate index, from `FIRST_STANDBY` on, until it takes a place. It is connected to the owner, and to no
    other front end.
    """

    def __init__(
        self, owner: Owner, wanted: int, make_budget: Callable[[], RestartBudget] = RestartBudget
    ) -> None:
        self._make_budget = make_budget
        self._owner = owner
        self._wanted = wanted
        self._indexes = itertools.cycle(range(FIRST_STANDBY + 1, LAST_INDEX))
        self.ready: dict[int, EngineFleet] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._filling: asyncio.Task[None] | None = None
        self.being_built: asyncio.Event | None = (
            None  # set when the one that is being built is ready, or failed
        )
        self._reset()

    def _reset(self) -> None:
        self._budget = self._make_budget()
        self.is_given_up = False

    @property
    def num_at_once(self) -> int:
        """Number of engines that can be restored together immediately; 0 if none stands by or is being built."""
        return len(self.ready) or int(self.being_built is not None)

    # ------------------------------------------------------------------ starting them
    def listen(self) -> None:
        """Start them in the background from now on."""
        self._loop = asyncio.get_running_loop()
        self.fill()

    def fill(self) -> None:
        """Start what is missing, unless that is under way."""
        if self._loop is not None and self._filling is None and self._is_missing:
            self._filling = self._loop.create_task(self._fill())

    @property
    def _is_missing(self) -> bool:
        is_over = self._owner.client.dead is not None
        return len(self.ready) < self._wanted and not self.is_given_up and not is_over

    async def _fill(self) -> None:
        try:
            await asyncio.sleep(DELAY_S)
            while self._is_missing:
                # One that is started now would not be as the engines are.
                if self._owner.client.awaited or await self._owner.events.divergence():
                    await asyncio.sleep(POLL_S)
                    continue
                self.being_built = asyncio.Event()
                try:
                    await self._build(next(self._indexes))
                finally:
                    self.being_built.set()
                    self.being_built = None
        finally:
            self._filling = None

    async def _build(self, index: int) -> None:
        engines = self._owner.engines
        fleet = engines.fleet
        plan = engines.plan
        try:
            async with joining(engines, fleet, [index]):
                fleet.check_running([index])
        except Exception as error:  # noqa: BLE001 - nobody waits for it
            if self._is_missing:
                self._count_failure(f"{engine_name(index)} could not be started: {error}")
            return
        self.ready[index] = fleet
        self._budget.served(0)
        if plan is not engines.plan or fleet is not engines.fleet:
            await self._drop(index)
            return
        logger.info("%s is ready to take over", engine_name(index))
        self._tell()

    async def _stop(self, index: int, fleet: EngineFleet, reason: str) -> None:
        self._owner.client.drop_newcomer(index, reason)
        await asyncio.to_thread(fleet.stop, [index])

    async def _drop(self, index: int) -> None:
        await self._stop(index, self.ready.pop(index), "it is not needed any more")
        self._tell()

    async def renew(self, wanted: int) -> None:
        """Engines that are started from now on are others than those that stand by."""
        self._wanted = wanted
        self._reset()
        for index in list(self.ready):
            await self._drop(index)
        self.fill()

    async def follow(self, method: str, args: Sequence[Any]) -> None:
        """Call a method that changed the engines; a standby that fails is lost, and the caller does not notice."""
        client = self._owner.client
        for index in [each for each in client.newcomers if each >= FIRST_STANDBY]:
            try:
                await client.call_engine(index, method, *args)
            except EngineGenerateError as error:
                client.on_death(index, Death(f"it could not follow '{method}': {error}"))
            except EngineDeadError:  # another one is started
                pass

    # ------------------------------------------------------------------ their ends
    def lost(self, index: int, death: Death) -> None:
        """One of them died. No stream knows of it."""
        fleet = self.ready.pop(index, None)
        if fleet is None or self._loop is None:
            return
        self._owner.client.drop_newcomer(index, str(death))
        self._loop.run_in_executor(None, fleet.stop, [index])
        self._tell()
        self._count_failure(str(death))
        self.fill()

    def _count_failure(self, reason: str) -> None:
        if self._budget.take(0, time.monotonic()):
            logger.warning("%s; starting another one", reason)
            return
        self.is_given_up = True
        logger.error(
            "%s; limit exceeded (%s), and standbys are disabled until engines are replaced",
            reason,
            self._budget,
        )

    # ------------------------------------------------------------------ their use
    async def take_place(self, index: int) -> bool:
        """Bring a dead engine back by one that stands by; False if there is none. Raises EngineDeadError if that one
        dies as well, LaunchError if it does not answer.
        """
        if not self.ready and self.being_built is not None:
            await self.being_built.wait()
        while self.ready:
            standby = min(self.ready)
            fleet = self.ready.pop(standby)
            self._tell()
            try:
                facts = promote(fleet, standby, index)
            except LaunchError as error:
                await self._stop(standby, fleet, str(error))
                continue
            asyncio.get_running_loop().run_in_executor(None, stop_former, fleet, index)
            try:
                await self._use(standby, facts, fleet)
            except BaseException as error:
                self._owner.client.remove_engine(index, str(error))
                await asyncio.to_thread(fleet.stop, [index])
                raise
            return True
        return False

    async def _use(self, standby: int, facts: EngineFacts, fleet: EngineFleet) -> None:
        owner, index = self._owner, facts.index
        link = owner.client.newcomers.pop(standby)  # its sockets keep their identity
        link.facts, link.index, link.epoch = facts, index, facts.epoch
        owner.client.engines[index] = link
        fleet.check_running([index])
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await owner.client.call_engine(index, "take_place", index, facts.epoch)
        except TimeoutError:  # it was stopped, or hangs
            raise LaunchError(
                f"{engine_name(standby)} did not answer within {ANSWER_TIMEOUT_S:g} s"
            ) from None
        logger.info("%s took over as engine %d", engine_name(standby), index)
        owner.note(index, RecoveryStats(takeovers=1))
        await owner.events.on_join(fleet, [index])
        owner.engines.learn()

    def _tell(self) -> None:
        self._owner.note(0, RecoveryStats(standbys=len(self.ready)))


def promote(fleet: EngineFleet, standby: int, index: int) -> EngineFacts:
    """An engine that stood by is this one from now on, in place of one that died. Raises LaunchError."""
    launcher = fleet.launcher
    launcher.rename(engine_name(index), FORMER + engine_name(index))
    with fleet.lock:
        facts = fleet.engines.pop(standby, None)
        if facts is None:
            raise LaunchError(f"{engine_name(standby)} has just ended")
        launcher.rename(engine_name(standby), engine_name(index))
        facts = msgspec.structs.replace(facts, index=index, epoch=next(fleet.epochs))
        fleet.places[index] = fleet.places.pop(standby)
        fleet.engines[index] = facts
        fleet.dead.pop(index, None)
    fleet.look_for_ends()  # it may have ended while it still had the other name
    return facts


def stop_former(fleet: EngineFleet, index: int) -> None:
    """Wait for the process of the engine that was this one before."""
    fleet.launcher.stop([FORMER + engine_name(index)])


def check_supported(config: EngineConfig, model: ModelInfo, launcher: type[Launcher]) -> None:
    """Raises ConfigError where no engine can stand by."""
    why = ""
    local = config.data_parallel_size_local
    settings = config.section(RecoverySettings)
    wanted = settings.standby_engines
    if not wanted:
        return
    if settings.engine_death == "stop":
        why = "engine_death=stop, since no engine restarts then"
    elif not launcher.supports_replacement:
        why = f"launcher={config.launcher.name}; only engines that are processes of this node have some"
    elif local is not None and local < config.data_parallel_size:
        why = f"data_parallel_size_local={local}, engines on other nodes"
    elif model.needs_lockstep:
        why = "engines that step together (enable_expert_parallel)"
    elif config.kv_connector is not None:
        why = f"kv_connector={config.kv_connector.name}"
    if why:
        raise ConfigError(f"standby_engines={wanted} is not possible with {why}; leave it at 0")
    check_shares(config, wanted)


def check_shares(config: EngineConfig, wanted: int) -> None:
    """Raises ConfigError where engines and standbys would need more of a GPU than there is."""
    local = config.data_parallel_size_local or config.data_parallel_size
    is_sized = config.kv_cache_memory_bytes or config.num_gpu_blocks_override
    if not config.may_use_gpus or is_sized:
        return
    places = max(1, len(visible_devices()) // config.world_size)
    sharing = -(-(local + wanted) // places)
    share = config.gpu_memory_utilization
    if sharing > 1 and sharing * share > 1:
        raise ConfigError(
            f"standby_engines={wanted}: {local} engines and {wanted} standbys on {places * config.world_size} GPUs put "
            f"{sharing} engines on one, and each takes gpu_memory_utilization={share:g} of it; use "
            f"--gpu-memory-utilization {math.floor(100 / sharing) / 100:g}, or leave standby_engines at 0"
        )
