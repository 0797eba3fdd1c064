"""Calls about adapters to all engines of a front end, or to the one of this process. Front end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from tenonry.operations.calls import Calls
from tenonry.step import Adapter


class Workers(Protocol):
    """Calls of worker methods by name, on every rank of one engine."""

    def call_workers(self, method: str, args: Sequence[Any] = ()) -> list[Any]: ...


class AdapterCalls:
    """Each call reaches every engine. Raises EngineGenerateError with an engine's message, or EngineDeadError."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._paths: dict[str, str] = {}
        self._changes = asyncio.Lock()  # so that no engine joins in the middle of one

    async def add(self, name: str, path: str) -> bool:
        """Load it into every engine, and into those that are added later."""
        async with self._changes:
            done = await self.calls.all("add_lora", name, path)
            self._paths[name] = path
            return done

    async def remove(self, name: str) -> bool:
        """Forget it."""
        async with self._changes:
            self._paths.pop(name, None)
            return await self.calls.all("remove_lora", name)

    async def renew(self, *_: object) -> None:
        """Engines join: before they get requests, they load what the others have already."""
        async with self._changes:
            for name, path in self._paths.items():
                await self.calls.call("add_lora", name, path)


class EngineAdapters:
    """The same for one engine. Raises what its worker raises."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def add(self, name: str, path: str) -> Adapter:
        """Load it; returns what requests say to use it."""
        self._workers.call_workers("add_lora", [name, path])
        loaded = {adapter.name: adapter for adapter in self.all()}
        return loaded[name]

    def remove(self, name: str) -> None:
        """Forget it."""
        self._workers.call_workers("remove_lora", [name])

    def all(self) -> list[Adapter]:
        """Those that are loaded."""
        ranks = self._workers.call_workers("list_loras")
        pairs = [text.rpartition("@") for text in ranks[0]]
        return [Adapter(name, digest) for name, _, digest in pairs]
