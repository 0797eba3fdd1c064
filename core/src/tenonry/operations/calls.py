"""Operations on all engines of a front end, in the order that keeps them together. The front end's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

STEPPING_POLL_S = 0.01


class Calls(Protocol):
    """Calls of engine methods by name, on every engine."""

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]: ...

    async def all(self, method: str, *args: Any) -> bool: ...


class Operations:
    """Each call reaches every engine, and returns when all have answered.

    Raises EngineGenerateError with the first engine's message that fails, EngineDeadError if one is gone.
    """

    def __init__(self, calls: Calls, record: Callable[..., None]) -> None:
        """`record(method, *values)`: what stat loggers get."""
        self.calls = calls
        self._record = record
        self._lock = asyncio.Lock()
        # By what engines differ from ones that were just started.
        self.changes: set[str] = set()

    async def hold(self) -> None:
        """No engine steps until `release`; requests keep their place."""
        async with self._lock:
            await self.calls.call("hold")
            self.changes.add("engines are held")

    async def release(self) -> None:
        """End `hold`."""
        async with self._lock:
            await self.calls.call("release")
            self.changes.discard("engines are held")

    async def sleep(self, level: int = 1) -> None:
        """All engines stop before the first sleeps, since those that share layers wait for one another."""
        async with self._lock:
            await self._standing(self._sleep, level)

    async def _sleep(self, level: int) -> None:
        self.changes.add("engines sleep")
        await self.calls.call("sleep", level)
        self._record("record_sleep_state", True, level)

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """No engine goes on before all are awake."""
        async with self._lock:
            await self._standing(self._wake_up, tags)

    async def _wake_up(self, tags: Sequence[str] | None) -> None:
        await self.calls.call("wake_up", tags)
        if not await self.calls.all("is_sleeping"):
            self.changes.discard("engines sleep")
            self._record("record_sleep_state", False, 0)

    async def update_weights(
        self, source: str, names: Sequence[str] | None = None, version: str = ""
    ) -> None:
        """Every engine says that the update would fit before the first one changes."""
        async with self._lock:
            await self.calls.call("check_update", source, names, version)
            await self._standing(self._update, source, names, version)

    async def _update(self, source: str, names: Sequence[str] | None, version: str) -> None:
        self.changes.add("engines have new weights")
        await self.calls.call("update_weights", source, names, version)

    async def _standing(self, act: Callable[..., Any], *args: Any) -> None:
        """Act while no engine steps; those that were held before stay so."""
        were_held = await self.calls.all("is_held")
        await self.calls.call("hold")
        try:
            while any(await self.calls.call("is_stepping")):  # noqa: ASYNC110 - in other processes
                await asyncio.sleep(STEPPING_POLL_S)
            await act(*args)
        finally:
            if not were_held:
                await self.calls.call("release")
