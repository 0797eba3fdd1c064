"""The health of the engines as probes see it: a busy engine does not delay them. Front end, event loop."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

ANSWER_S = 0.1  # a probe waits no longer for the engines; they answer between two steps


class HealthCheck:
    """One question to the engines at a time. Until it is answered, or its deadline ends, the last answer holds."""

    def __init__(self) -> None:
        self._check: asyncio.Task[None] | None = None
        self._error: Exception | None = None

    async def ask(self, engine: AsyncLLM) -> Exception | None:
        """Why an engine is not healthy; None if all are. Raises nothing."""
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(self._run(engine))
        await asyncio.wait({self._check}, timeout=ANSWER_S)
        return self._error

    async def _run(self, engine: AsyncLLM) -> None:
        try:
            await engine.check_health()
        except Exception as error:  # noqa: BLE001  whatever it is, the engines are not healthy
            self._error = error
        else:
            self._error = None
