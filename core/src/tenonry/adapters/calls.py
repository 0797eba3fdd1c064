"""Calls about adapters to all engines of a front end, or to the one of this process. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenonry.step import Adapter


class Calls(Protocol):
    """Calls of engine methods by name, on every engine."""

    async def call(
        self,
        method: str,
        *args: Any,
    ) -> list[Any]: ...


class Workers(Protocol):
    """Calls of worker methods by name, on every rank of one engine."""

    def call_workers(
        self,
        method: str,
        args: Sequence[Any] = (),
    ) -> list[Any]: ...


class AdapterCalls:
    """Each call reaches every engine. Raises EngineGenerateError with an engine's message, or EngineDeadError."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._paths: dict[str, str] = {}

    async def add(
        self,
        name: str,
        path: str,
    ) -> bool:
        """Load it into every engine, and into those that are added later."""
        done = await self.all("add_lora", name, path)
        self._paths[name] = path
        return done

    async def remove(self, name: str) -> bool:
        """Forget it."""
        self._paths.pop(name, None)
        return await self.all("remove_lora", name)

    async def names(self) -> list[str]:
        """`name@digest` of each, as the first engine has them."""
        answers = await self._calls.call("list_loras")
        return list(answers[0])

    async def renew(self) -> None:
        """Engines were added: they load what the others have already."""
        for name, path in self._paths.items():
            await self.all("add_lora", name, path)

    async def all(
        self,
        method: str,
        *args: Any,
    ) -> bool:
        """Whether every engine answers with something true."""
        answers = await self._calls.call(method, *args)
        return all(answers)


class EngineAdapters:
    """The same for one engine. Raises what its worker raises."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    def add(
        self,
        name: str,
        path: str,
    ) -> Adapter:
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
