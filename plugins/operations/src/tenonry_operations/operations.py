"""The call set `operations`: sleep, new weights, profiles and saving, on all engines of a front end. Event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from tenonry.interfaces.call_set import CallSet, Engine, EngineCalls, FrontEnd, FrontEndHalf
from tenonry_operations.engine import EngineOperations
from tenonry_operations.settings import OperationSettings

STEPPING_POLL_S = 0.01
HELD = "engines are held"
ASLEEP = "engines sleep"
UPDATED = "engines have new weights"


class OperationCalls(CallSet):
    """Calls of operators: sleep, new weights, profiles, saving."""

    Settings = OperationSettings
    name = "operations"

    def engine_half(self, engine: Engine) -> EngineOperations:
        settings = self.context.config.section(OperationSettings)
        return EngineOperations(engine, refuses_asleep=settings.refuse_while_asleep)

    def front_end_half(self, front_end: FrontEnd) -> Operations:
        return Operations(front_end.calls, front_end.record, front_end.divergence)

    def blocking_half(self, llm: Any, engine: Engine) -> EngineOperations:
        return EngineOperations(engine)  # no request comes while it sleeps


class Operations(FrontEndHalf):
    """Each call reaches every engine, and returns when all have answered.

    Raises EngineGenerateError with the first engine's message that fails, EngineDeadError if one is gone.
    """

    def __init__(
        self, engines: EngineCalls, record: Callable[..., None], divergence: set[str]
    ) -> None:
        self.engines = engines
        self._record = record
        self._divergence = divergence
        self._lock = asyncio.Lock()
        self._sleep_level = 0
        self._updates: list[tuple[str, Sequence[str] | None, str]] = []  # since the checkpoint

    async def on_join(self, engines: Sequence[int]) -> None:
        """Give engines that join the weights of the others; hold them, or let them sleep, as the others."""
        async with self._lock:
            for index in engines:
                for update in self._updates:
                    await self.engines.call_engine(index, "update_weights", *update)
                if HELD in self._divergence:
                    await self.engines.call_engine(index, "hold")
                if self._sleep_level:
                    await self.engines.call_engine(index, "sleep", self._sleep_level)

    # ------------------------------------------------------------------ holding
    async def hold(self) -> None:
        """Stop stepping until `release`; requests keep their place."""
        async with self._lock:
            await self.engines.change("hold")
            self._divergence.add(HELD)

    async def release(self) -> None:
        """End `hold`."""
        async with self._lock:
            await self.engines.change("release")
            self._divergence.discard(HELD)

    # ------------------------------------------------------------------ sleep
    async def sleep(self, level: int = 1) -> None:
        """All engines stop before the first sleeps, since those that share layers wait for one another."""
        async with self._lock:
            await self._standing(self._sleep, level)

    async def _sleep(self, level: int) -> None:
        self._divergence.add(ASLEEP)
        await self.engines.change("sleep", level)
        self._sleep_level = level
        if level == 2:  # what wakes up is read from the checkpoint
            self._updates.clear()
        self._record("record_sleep_state", True, level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """No engine continues before all are awake."""
        async with self._lock:
            await self._standing(self._wake_up, tags)

    async def _wake_up(self, tags: Sequence[str] | None) -> None:
        await self.engines.change("wake_up", tags)
        if not await self.is_sleeping():
            self._divergence.discard(ASLEEP)
            self._sleep_level = 0
            self._record("record_sleep_state", False, 0)

    async def is_sleeping(self) -> bool:
        """Return True if every engine sleeps."""
        return all(await self.engines.call("is_sleeping"))

    # ------------------------------------------------------------------ weights
    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Every engine confirms that the update fits before the first one changes."""
        async with self._lock:
            await self.engines.call("check_update", source, names, version)
            await self._standing(self._update, source, names, version)

    async def _update(self, source: str, names: Sequence[str] | None, version: str) -> None:
        self._divergence.add(UPDATED)
        await self.engines.call("update_weights", source, names, version)
        if names is None:
            self._updates.clear()
        self._updates.append((source, names, version))

    async def _standing(self, act: Callable[..., Any], *args: Any) -> None:
        """Act while no engine steps; engines that were held before stay so."""
        were_held = all(await self.engines.call("is_held"))
        await self.engines.change("hold")
        try:
            while any(await self.engines.call("is_stepping")):  # noqa: ASYNC110 - in other processes
                await asyncio.sleep(STEPPING_POLL_S)
            await act(*args)
        finally:
            if not were_held:
                await self.engines.change("release")

    # ------------------------------------------------------------------ profiles and saving
    async def start_profile(self) -> None:
        """Start a profile on every rank."""
        await self.engines.call("start_profile")

    async def stop_profile(self) -> None:
        """Stop the profile and write it."""
        await self.engines.call("stop_profile")

    async def save_sharded_state(
        self, path: str, pattern: str | None = None, max_size: int | None = None
    ) -> None:
        """Write each rank's weights into `path`."""
        await self.engines.call("save_sharded_state", path, pattern, max_size)
