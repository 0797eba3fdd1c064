"""An AsyncLLM over a real engine process of fakes, and the loop that serves it. Test process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLogger
from tenonry_testkit import served

T = TypeVar("T")
QUICK = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.002}}


def served_config(**values: Any) -> EngineConfig:
    return served.served_config(**{"worker": QUICK, **values})


class Served:
    """One AsyncLLM and its event loop."""

    def __init__(self, *, observers: dict[str, StatLogger] | None = None, **values: Any) -> None:
        self.runner = asyncio.Runner()
        self.engine = AsyncLLM(served_config(**values), stat_loggers=observers)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(main)

    def close(self) -> None:
        self.engine.shutdown()
        self.runner.close()
