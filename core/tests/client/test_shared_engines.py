"""A front end over engines that it does not own: it starts none, notices when they die, and leaves them running."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.client.engines import Engines, OwnedEngines
from tenonry.errors import EngineDeadError
from tenonry.interfaces.recovery import EngineEvents
from tenonry.stats import IterationStats
from tenonry_testkit.kernel.served import served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens


class Lent(Engines):
    """Engines of this test, lent to one front end, which is their only client."""

    def __init__(self) -> None:
        self.owned = owned = OwnedEngines(served_config())
        self.plan, self.model, self.stats, self.client = (
            owned.plan,
            owned.model,
            owned.stats,
            owned.client,
        )
        self.calls: list[str] = []

    def start(self, events: EngineEvents) -> None:
        self.owned.start(events)
        self.info = self.owned.info

    def listen(
        self, loop: asyncio.AbstractEventLoop, take: Callable[[], dict[int, IterationStats]]
    ) -> None:
        assert loop is asyncio.get_running_loop()
        assert take() == {}
        self.calls.append("listen")

    def pids(self) -> dict[str, int]:
        return self.owned.pids()

    def shutdown(self, timeout: float = 5.0) -> None:
        self.calls.append("shutdown")


@pytest.fixture
def lent(fake_model_site: Any) -> Iterator[Lent]:
    made = Lent()
    yield made
    made.owned.shutdown()


def test_it_serves_and_leaves_them_to_their_owner(lent):
    engine = AsyncLLM(served_config(), engines=lent)

    async def main() -> None:
        assert await collect(engine, [3], params(), "r") == tokens([3], params())

    asyncio.run(main())
    assert engine.engine_pids == lent.owned.pids()
    engine.shutdown()
    assert lent.calls == ["listen", "shutdown"]
    assert list(lent.owned.pids()) == ["engine 0"]


def test_its_streams_fail_when_they_die(lent):
    engine = AsyncLLM(served_config(), engines=lent)

    async def main() -> None:
        stream = engine.generate([3], params(max_tokens=500), "r")
        await anext(stream)
        os.kill(engine.engine_pids["engine 0"], signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass

    asyncio.run(main())
    eventually(lambda: engine.errored)
    engine.shutdown()
