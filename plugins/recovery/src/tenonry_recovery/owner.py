"""Restarts, standbys, fallbacks and replacement of engines that this process owns. Front end or supervisor."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from tenonry.client.engines import OwnedEngines
from tenonry.client.start import describe
from tenonry.errors import LaunchError
from tenonry.interfaces.recovery import RecoveryContext
from tenonry.plugin.manager import PluginManager, part_settings
from tenonry.plugin.plan import load_class
from tenonry.stats import RecoveryStats, StatRecord
from tenonry_recovery.budget import RestartBudget
from tenonry_recovery.changes import changed
from tenonry_recovery.fallbacks import MAX_FAULTS, check_fallbacks, counted, fall_back, fallbacks_of
from tenonry_recovery.replacement import Replacement, check_layout, check_present
from tenonry_recovery.restarts import Restarts
from tenonry_recovery.settings import RecoverySettings
from tenonry_recovery.standbys import Standbys, check_supported
from tenonry_scale_out.joining import grow

logger = logging.getLogger("tenonry.recovery")


class OwnedRecovery:
    """Restarts engines for the listener of `context`, which then tries suspects and admits requests."""

    def __init__(self, context: RecoveryContext, engines: OwnedEngines) -> None:
        self.engines = engines
        self.client = engines.client
        self.events = context.events
        config = context.config
        lockstep = self.engines.model.needs_lockstep
        num_together = config.data_parallel_size if lockstep else 1
        check_fallbacks(config)
        self._fallbacks = fallbacks_of(self.engines.config, self.engines.manager)
        options: Any = context.options
        make_budget = partial(RestartBudget, options.max_restarts, options.window_s)
        self.standbys = Standbys(
            self, config.section(RecoverySettings).standby_engines, make_budget
        )
        self.restarts = Restarts(
            self, context.lock, make_budget(), num_together, lambda: self.standbys.num_at_once
        )

    def note(self, index: int, numbers: RecoveryStats) -> None:
        """Let stat loggers know what happened to an engine."""
        record = StatRecord(engine_index=index, time=time.monotonic(), recovery=numbers)
        self.engines.stats.record(record)

    # ------------------------------------------------------------------ restarting
    @property
    def is_over(self) -> bool:
        """No engine is left, or wanted."""
        return self.client.dead is not None

    @property
    def serves(self) -> bool:
        """True if engines are left for the streams."""
        return any(not link.dead for link in self.client.engines.values())

    def has(self, index: int) -> bool:
        """Return True if this engine exists."""
        return index in self.client.engines

    async def divergence(self) -> Collection[str]:
        """By what the engines differ from ones just started."""
        return await self.events.divergence()

    async def restart(self, indexes: Sequence[int]) -> None:
        """Start engines that died, under their numbers, or let some that stand by take these; return when they can be
        used. Raises LaunchError.
        """
        engines = self.engines
        for kind in list(self._fallbacks):
            if self.client.faults[engines.plan.get(kind).name] >= MAX_FAULTS:
                self._fall_back(kind, indexes[0])
                await self.standbys.renew(engines.config.section(RecoverySettings).standby_engines)
        if missing := [each for each in indexes if not await self.standbys.take_place(each)]:
            await grow(engines, missing)
        self.standbys.fill()

    def _fall_back(self, kind: str, index: int) -> None:
        """Start engines with another plugin of this kind from now on, or without one."""
        engines = self.engines
        config = fall_back(engines.config, engines.manager, kind, self._fallbacks.pop(kind))
        engines.use(config, engines.manager.plan(config), engines.manager)
        engines.fleet.change(config, engines.plan)
        self.note(index, counted(kind))

    async def admit(self, indexes: Sequence[int]) -> None:
        """These engines are ready: first for suspects, then for all."""
        await self.events.on_started(indexes)
        self.events.on_admitted(indexes)

    def give_up(self, index: int, reason: str) -> None:
        """This engine is not restarted."""
        self.events.on_given_up(index, reason)

    # ------------------------------------------------------------------ replacing
    async def replace(self, changes: Mapping[str, Any], size: int | None = None) -> None:
        """Start engines with these changes, each of which takes the place of one that runs. Raises where all of those
        serve on. `size`: another number of engines that step together; those beyond it run no requests.
        """
        engines = self.engines
        launcher = load_class(engines.plan.get("launcher"))
        check_layout(engines.config, engines.model, launcher, is_local=engines.fleet.is_local)
        check_present(self.client.awaited, await self.divergence())
        parts = part_settings(engines.plan.entries, engines.config)
        config = changed(engines.config, changes, parts)
        if size is not None:
            config = config.replaced(data_parallel_size=size)
        manager = PluginManager(config.plugins)
        plan = await asyncio.to_thread(manager.plan, config)
        check_supported(config, engines.model, load_class(plan.get("launcher")))
        others = fallbacks_of(config, manager)
        plugins = [describe(each.records()) for each in (engines.plan, plan)]
        logger.info("engines are replaced: %s becomes %s", *plugins)
        logger.info(
            "settings %s become %s",
            engines.config.describe(engines.plan.secrets),
            config.describe(plan.secrets),
        )
        before = engines.fleets[:]
        fleet = engines.add_fleet(config, plan)
        fleet.size = size or engines.fleet.size
        await Replacement(self, fleet).run()
        engines.fleets = [fleet]
        engines.use(config, plan, manager)
        if size is not None:
            self.restarts.num_together = size
        self._fallbacks = others
        self.client.faults.clear()
        for each in before:
            await asyncio.to_thread(each.shutdown)
        self.client.ports.unbind_unused()
        await self.standbys.renew(config.section(RecoverySettings).standby_engines)
        # One that has just died is restarted, or ends everything.
        with contextlib.suppress(LaunchError):
            engines.learn()
