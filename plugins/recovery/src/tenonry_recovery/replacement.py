"""Replacement of engines while requests run: new ones start alongside, one after another. Front end.

For a moment both exist, each with weights and KV cache. Streams move as after a crash, but to an engine that is ready.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from tenonry.client.core_client import CoreClient
from tenonry.client.engines import OwnedEngines
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError, Unsupported
from tenonry.info import ModelInfo
from tenonry.interfaces.launcher import Launcher
from tenonry.interfaces.recovery import EngineEvents
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.stats import RecoveryStats
from tenonry_scale_out.joining import joining, switch

logger = logging.getLogger("tenonry.recovery")
POLL_S = 0.005
CALLS_TIMEOUT_S = 60.0
SAME_FACTS = ("block_size", "max_model_len", "tasks")


class Owner(Protocol):
    """Owner of the engines, whose listener moves their streams."""

    engines: OwnedEngines
    client: CoreClient
    events: EngineEvents

    async def admit(self, indexes: Sequence[int]) -> None: ...

    def note(self, index: int, numbers: RecoveryStats) -> None: ...


class Replacement:
    """Engines of `fleet` take the places of all that run, or none does."""

    def __init__(self, owner: Owner, fleet: EngineFleet) -> None:
        self._owner = owner
        self._fleet = fleet

    async def run(self) -> None:
        """Raises what the start of an engine raises; then the ones before serve on."""
        owner = self._owner
        waiting, num_together = sorted(owner.client.engines), 1
        if owner.engines.model.needs_lockstep:  # all together, also if their number changes
            waiting, num_together = list(range(self._fleet.size)), self._fleet.size
        try:
            while waiting:
                indexes = waiting[:num_together]
                del waiting[:num_together]
                # One that died is started with what all have then.
                if owner.client.engines.keys() & indexes:
                    await self._replace(indexes, self._fleet)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):  # else everything ends
                await self._go_back()
            if not self._fleet.engines:
                engines = owner.engines
                engines.fleets = [each for each in engines.fleets if each is not self._fleet]
                await asyncio.to_thread(self._fleet.shutdown)
            raise

    async def _replace(self, indexes: Sequence[int], fleet: EngineFleet) -> None:
        owner = self._owner
        known = {link.index: link.facts for link in owner.client.engines.values()}
        async with joining(owner.engines, fleet, indexes):
            for index, facts in fleet.engines.items():
                if index in known:
                    check_same(known[index], facts)
            await self._until_answered(indexes)
            check_unchanged(await owner.events.divergence())
            switch(owner.engines, fleet, indexes)
        for index in indexes:
            logger.info("engine %d: replaced", index)
            owner.note(index, RecoveryStats(replacements=1))
        await owner.admit(indexes)
        for each in owner.engines.fleets:
            if each is not fleet:
                await asyncio.to_thread(each.stop, indexes)

    async def _until_answered(self, indexes: Sequence[int]) -> None:
        """Until no call waits for these engines."""
        give_up = time.monotonic() + CALLS_TIMEOUT_S
        while waiting := list(filter(self._owner.client.has_calls, indexes)):
            if time.monotonic() > give_up:
                raise LaunchError(
                    f"a call of engine {waiting[0]} was not answered within {CALLS_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(POLL_S)

    async def _go_back(self) -> None:
        """Engines that replaced others are replaced by ones like those that are left."""
        for index in sorted(self._fleet.engines):  # one that died is started as the others are
            try:
                await self._replace([index], self._owner.engines.fleet)
            except Exception:
                logger.exception("engine %d keeps changes that failed in other engines", index)


def check_layout(
    config: EngineConfig, model: ModelInfo, launcher: type[Launcher], *, is_local: bool
) -> None:
    """Raises Unsupported where engines cannot be replaced yet."""
    where = ""
    if model.needs_lockstep and config.expert_rendezvous:
        where = f"expert_rendezvous={config.expert_rendezvous}, where those that run have met"
    elif not launcher.supports_replacement:
        where = f"launcher={config.launcher.name}"
    elif not is_local:
        where = (
            f"data_parallel_size_local={config.data_parallel_size_local}, engines on other nodes"
        )
    elif config.kv_connector is not None:
        where = f"kv_connector={config.kv_connector.name}"
    if where:
        raise Unsupported(
            f"engines cannot be replaced while they run with {where}; start another server with the changes, and "
            "move clients there"
        )


def check_present(awaited: Collection[int], changes: Collection[str]) -> None:
    """Raises LaunchError while engines that died are started again, Unsupported as `check_unchanged` does."""
    if awaited:
        raise LaunchError(f"engines {sorted(awaited)} failed and are restarting; try again then")
    check_unchanged(changes)


def check_unchanged(changes: Collection[str]) -> None:
    """Raises Unsupported where an engine that is started would not be as those that run."""
    if changes:
        raise Unsupported(
            f"{', '.join(sorted(changes))}, and ones that are started would not be so; wake them up or resume first, "
            "and after new weights start another server"
        )


def check_same(known: EngineFacts, found: EngineFacts) -> None:
    """Raises ConfigError if a fact differs that open requests were checked against."""
    for name in SAME_FACTS:
        expected = getattr(known, name)
        value = getattr(found, name)
        if value != expected:
            raise ConfigError(
                f"engine {found.index} would have {name} {value} instead of {expected}, on which open requests and the "
                "front end count; give it what it had, such as as much memory for the KV cache"
            )
