"""Engines that take the place of others while requests run: started beside them, one after another. Front end.

For a moment both are there, with the weights and the KV cache of each. Streams move as they do when an engine died, but
to one that is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, LaunchError, Unsupported
from tenonry.info import ModelInfo
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.plugin.plan import PluginPlan
from tenonry.replacement.fleets import Fleets
from tenonry.transport.folder import RunDirectory

logger = logging.getLogger(__name__)
POLL_S = 0.005
CALLS_TIMEOUT_S = 60.0
SAME_FACTS = ("block_size", "max_model_len", "tasks")


class Client(Protocol):
    """The link to the engines."""

    newcomers: dict[int, Any]

    @property
    def engines(self) -> Mapping[int, object]: ...

    @property
    def awaited(self) -> Collection[int]: ...

    @property
    def dead(self) -> str | None: ...

    def expect(self, facts: EngineFacts) -> None: ...

    def promote(self, standby: int, facts: EngineFacts) -> None: ...

    def drop_newcomer(self, index: int, reason: str) -> None: ...

    async def call_engine(self, index: int, method: str, *args: Any) -> Any: ...

    def has_calls(self, index: int) -> bool: ...

    def check_alive(self) -> None: ...


class Owner(Protocol):
    """Who owns the engines. `changes`: by what they differ from ones just started. `on_join` is awaited before one gets
    requests.
    """

    fleets: Fleets
    plan: PluginPlan
    changes: Collection[str]
    on_join: Callable[[], Awaitable[None]]

    @property
    def client(self) -> Client: ...

    async def start_some(
        self,
        fleet: EngineFleet,
        indexes: Sequence[int],
        meeting: RunDirectory,
    ) -> list[EngineFacts]: ...

    async def wait_until_connected(self) -> None: ...


class Replacement:
    """Engines of `fleet` take the places of all that run, or none does. `switch(index)` moves the streams of one, and
    returns False if it has just died.
    """

    def __init__(
        self,
        owner: Owner,
        fleet: EngineFleet,
        switch: Callable[[int], bool],
    ) -> None:
        self._owner = owner
        self._fleet = fleet
        self._switch = switch

    async def run(self) -> None:
        """Raises what the start of an engine raises; then the ones before serve on."""
        owner = self._owner
        try:
            for index in sorted(owner.client.engines):
                if (
                    index in owner.client.engines
                ):  # else it died, and is started with what all have then
                    await self._replace(index, self._fleet)
        except BaseException as error:
            if not isinstance(error, asyncio.CancelledError):  # else everything ends
                await self._go_back()
            if not owner.fleets.owners:
                await asyncio.to_thread(self._fleet.shutdown)
            raise

    async def _replace(self, index: int, fleet: EngineFleet) -> None:
        owner = self._owner
        before = owner.fleets.owner(index)
        known = before.engines.get(index)
        try:
            with contextlib.closing(fleet.run_directory()) as meeting:
                (facts,) = await owner.start_some(fleet, [index], meeting)
                if known is not None:
                    check_same(known, facts)
                owner.client.expect(facts)
                await owner.wait_until_connected()
            await owner.on_join()
            await self._take_over(index, fleet)
        except BaseException:
            owner.client.newcomers.pop(index, None)
            await asyncio.to_thread(fleet.stop, [index])
            raise
        logger.info("engine %d: epoch %d has taken its place", index, facts.epoch)
        await asyncio.to_thread(before.stop, [index])

    async def _take_over(self, index: int, fleet: EngineFleet) -> None:
        """When no call waits for the engine."""
        give_up = time.monotonic() + CALLS_TIMEOUT_S
        while self._owner.client.has_calls(index) or not self._moved(index, fleet):
            if time.monotonic() > give_up:
                raise LaunchError(
                    f"a call of engine {index} was not answered within {CALLS_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(POLL_S)

    def _moved(self, index: int, fleet: EngineFleet) -> bool:
        owner = self._owner
        check_unchanged(owner.changes)
        owner.client.check_alive()
        fleets = owner.fleets
        with fleets.lock:
            if reason := fleet.dead.get(index):
                raise LaunchError(f"it ended before it was used: {reason}")
            if not self._switch(index):
                return False
            if fleet is fleets.current:
                del fleets.owners[index]
            else:
                fleets.owners[index] = fleet
            return True

    async def _go_back(self) -> None:
        """Engines that replaced others are replaced by ones like those that are left."""
        fleets = self._owner.fleets
        for index in sorted(fleets.owners):
            if index not in self._owner.client.engines:  # it died, and is started as the others are
                del fleets.owners[index]
                continue
            try:
                await self._replace(index, fleets.current)
            except Exception:
                logger.exception("engine %d keeps the changes that others could not get", index)


def check_layout(
    config: EngineConfig,
    model: ModelInfo,
    fleets: Fleets,
) -> None:
    """Raises Unsupported where engines cannot be replaced yet."""
    where = ""
    if model.needs_lockstep:
        where = "engines that step together (enable_expert_parallel)"
    elif config.launcher.name != "process":
        where = f"launcher={config.launcher.name}"
    elif not fleets.current.is_local:
        where = (
            f"data_parallel_size_local={config.data_parallel_size_local}, engines on other nodes"
        )
    elif fleets.coordinated:
        where = "a coordinator, as several API servers have"
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
        raise LaunchError(
            f"engines {sorted(awaited)} died and are being started again; try again then"
        )
    check_unchanged(changes)


def check_unchanged(changes: Collection[str]) -> None:
    """Raises Unsupported where an engine that is started would not be as those that run."""
    if changes:
        raise Unsupported(
            f"{', '.join(sorted(changes))}, and ones that are started would not be so; wake them up or resume first, "
            "and after new weights start another server"
        )


def check_same(known: EngineFacts, found: EngineFacts) -> None:
    """What open requests were checked against must hold. Raises ConfigError."""
    for name in SAME_FACTS:
        expected = getattr(known, name)
        value = getattr(found, name)
        if value != expected:
            raise ConfigError(
                f"engine {found.index} would have {name} {value} instead of {expected}, on which open requests and the "
                "front end count; give it what it had, such as as much memory for the KV cache"
            )
