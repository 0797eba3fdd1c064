"""Calls of engine methods by name. Front end; the event loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tenonry.client.core_client import CoreClient
from tenonry.client.output_handler import OutputHandler
from tenonry.client.stat_manager import StatManager


class EngineCalls:
    """Calls methods of the engines' allow-list on every engine, and waits for all answers.

    Raises EngineGenerateError with the engine's message, such as for a call that its worker does not declare, or
    EngineDeadError.
    """

    def __init__(self, client: CoreClient, handler: OutputHandler, stats: StatManager) -> None:
        self._client = client
        self._handler = handler
        self._stats = stats

    async def call(self, method: str, *args: Any) -> list[Any]:
        """One result per engine, in the engines' order."""
        self._client.check_alive()
        self._handler.listen()
        return await self._client.call(method, *args)

    async def all(self, method: str, *args: Any) -> bool:
        """True if every engine answers with something true."""
        return all(await self.call(method, *args))

    async def workers(self, method: str, args: Sequence[Any], timeout_s: float | None) -> list[Any]:
        """Call a method of the workers' allow-list on every rank of every engine; one result per rank."""
        engines = await self.call("collective_rpc", method, list(args), timeout_s)
        return [result for ranks in engines for result in ranks]

    async def sleep(self, level: int) -> None:
        await self.call("sleep", level)
        self._stats.submit("record_sleep_state", True, level)

    async def wake_up(self, tags: list[str] | None) -> None:
        await self.call("wake_up", tags)
        self._stats.submit("record_sleep_state", False, 0)
