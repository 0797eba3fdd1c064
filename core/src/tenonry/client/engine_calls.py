"""Calls of engine methods by name. Front end; the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from tenonry.client.core_client import CoreClient
from tenonry.client.output_handler import OutputHandler
from tenonry.errors import EngineDeadError, EngineGenerateError
from tenonry.interfaces.recovery import EngineRecovery

# An engine handles calls between two steps, and a long prompt on a CPU takes seconds.
HEALTH_TIMEOUT_S = 30.0


class EngineCalls:
    """Calls methods of the engines' allow-list; `prefix`: "NAME." for those of a call set.

    Raises EngineGenerateError with the engine's message, for example for a call unknown to its worker, or
    EngineDeadError.
    """

    def __init__(
        self, client: CoreClient, handler: OutputHandler, recovery: EngineRecovery, prefix: str = ""
    ) -> None:
        self._client = client
        self._handler = handler
        self._recovery = recovery
        self._prefix = prefix
        self._health: asyncio.Future[list[None]] | None = None  # the pending health check

    async def call(self, method: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Call a method on every engine; returns results in engine order."""
        self._client.check_alive()
        self._handler.listen()
        return await self._client.call(self._prefix + method, *args, **kwargs)

    async def change(self, method: str, *args: Any) -> list[Any]:
        """As `call`, for a lasting change of state, which is reported to the recovery."""
        answers = await self.call(method, *args)
        await self._recovery.on_call(self._prefix + method, args)
        return answers

    async def call_engine(self, index: int, method: str, *args: Any) -> Any:
        """Call a method on one engine, preferring a newcomer of this index."""
        return await self._client.call_engine(index, self._prefix + method, *args)

    async def check_health(self) -> None:
        """Check every engine and its executor. Raises EngineDeadError that names an unhealthy one.

        An engine without a response within `HEALTH_TIMEOUT_S` is unhealthy, unless another call of this front end, such
        as `wake_up` or `collective_rpc`, is pending: such a call may last longer, and the heartbeat and
        `--step-timeout` watch the engine. Concurrent checks share one result.
        """
        self._client.check_alive()
        self._handler.listen()
        if self._health is None or self._health.done():
            checks = [
                self._check_engine(link.index)
                for link in self._client.engines.values()
                if not link.dead
            ]
            self._health = asyncio.gather(*checks)
        await asyncio.shield(self._health)
        self._client.check_alive()

    async def _check_engine(self, index: int) -> None:
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._client.call_engine(index, "check_health")
        except TimeoutError:
            if self._client.has_calls(index):
                return
            reason = f"it did not answer within {HEALTH_TIMEOUT_S:g} s"
        except (EngineDeadError, EngineGenerateError) as error:
            if self._client.recovers and isinstance(error, EngineDeadError):  # it restarts
                return
            reason = str(error)
        else:
            return
        if index in self._client.engines:  # otherwise it left, and the others serve
            raise EngineDeadError(f"engine {index} is not healthy: {reason}")
