"""An AsyncLLM over a real engine process of fakes, and the loop that serves it. Test process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLogger
from tenonry_testkit import served

T = TypeVar("T")
COUNT_TRIES = 300
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

    @property
    def pid(self) -> int:
        """The process of engine 0."""
        return self.engine.engine_pids["engine 0"]

    async def begin(self, request_id: str = "r", **fields: Any) -> Any:
        """Start a long stream and wait for its first output."""
        sampling = served.params(max_tokens=400, **fields)
        stream = self.engine.generate([1, 2, 3], sampling, request_id)
        await anext(stream)
        return stream

    async def counts_are(self, running: int, waiting: int) -> None:
        """Wait, for a few steps, until the engine has these numbers of requests."""
        expected = [[running, waiting]]
        for _ in range(COUNT_TRIES):
            counts = await self.engine.engine_calls.call("request_counts")
            if counts == expected:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"[running, waiting] are {counts}, not {expected}")

    def close(self) -> None:
        self.engine.shutdown()
        self.runner.close()


@contextlib.contextmanager
def serving() -> Iterator[Callable[..., Served]]:
    """Yield a function that starts engines; all end with the test. The model `fake` has to be installed."""
    made: list[Served] = []

    def start(**values: Any) -> Served:
        made.append(Served(**values))
        return made[-1]

    yield start
    for each in made:
        each.close()
