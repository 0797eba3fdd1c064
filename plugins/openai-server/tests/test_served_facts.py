"""Facts of the served model are queried once for all concurrent requests."""

from __future__ import annotations

import asyncio

from tenonry_openai_server import served_facts
from tenonry_openai_server.served_facts import ServedFacts


class SilentEngine:
    """Workers that never answer; counts the queries."""

    def __init__(self) -> None:
        self.num_calls = 0

    async def collective_rpc(self, method: str) -> list[object]:
        self.num_calls += 1
        await asyncio.Event().wait()
        raise AssertionError(method)


def test_requests_that_wait_together_wait_once(monkeypatch):
    monkeypatch.setattr(served_facts, "DEADLINE_S", 0.05)
    engine = SilentEngine()

    async def ask_three_times() -> list[object]:
        facts = ServedFacts()
        return await asyncio.gather(*(facts.of(engine) for _ in range(3)))

    assert asyncio.run(ask_three_times()) == [None, None, None]
    assert engine.num_calls == 1


def test_a_client_that_leaves_does_not_end_it_for_another(monkeypatch):
    monkeypatch.setattr(served_facts, "DEADLINE_S", 0.05)
    engine = SilentEngine()

    async def leave_while_another_waits() -> object:
        facts = ServedFacts()
        leaving = asyncio.create_task(facts.of(engine))
        staying = asyncio.create_task(facts.of(engine))
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(leave_while_another_waits()) is None
    assert engine.num_calls == 1
