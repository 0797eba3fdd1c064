"""AsyncLLM.check_health: queries the executor of every engine, once for all probes, within a deadline (AF-20)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenonry.client import engine_calls
from tenonry.errors import EngineDeadError
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = pytest.mark.usefixtures("forked_children")

UNHEALTHY = {
    "name": "tenonry_testkit.kernel.faulty:FaultyExecutor",
    "options": {"fail": "check_health"},
}


def test_an_executor_that_is_not_healthy_is_named_with_its_engine(serve):
    served = serve(executor=UNHEALTHY)
    text = "engine 0 is not healthy: RuntimeError: check_health failed on purpose"
    with pytest.raises(EngineDeadError, match=text):
        served.run(served.engine.check_health())
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())


def test_an_engine_that_does_not_answer_is_named(serve, monkeypatch):
    served = serve(data_parallel_size=2)
    monkeypatch.setattr(engine_calls, "HEALTH_TIMEOUT_S", 1.0)
    pid = served.engine.engine_pids["engine 1"]
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(
        EngineDeadError, match=r"engine 1 is not healthy: it did not answer within 1 s"
    ):
        served.run(served.engine.check_health())
    os.kill(pid, signal.SIGCONT)


def test_an_engine_that_another_call_keeps_busy_is_healthy(serve, monkeypatch):
    """Some calls, such as `wake_up`, last longer than the deadline; a call of one engine excuses no other."""
    served = serve(data_parallel_size=2)
    client = served.engine.engine_core
    monkeypatch.setattr(engine_calls, "HEALTH_TIMEOUT_S", 0.2)
    pids = served.engine.engine_pids.values()

    async def main() -> None:
        call = asyncio.create_task(served.engine.wake_up())
        await asyncio.sleep(0)
        await served.engine.check_health()
        call.cancel()
        await asyncio.wait([call])
        call = asyncio.create_task(client.call_engine(0, "check_health"))
        with pytest.raises(EngineDeadError, match="engine 1 is not healthy: it did not answer"):
            await served.engine.check_health()
        call.cancel()
        await asyncio.wait([call])

    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        served.run(main())
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_probes_at_the_same_time_share_one_question(shared, monkeypatch):
    call = shared.engine.engine_core.call_engine
    questions: list[tuple[Any, ...]] = []

    def counted(*args: Any) -> Any:
        questions.append(args)
        return call(*args)

    monkeypatch.setattr(shared.engine.engine_core, "call_engine", counted)

    async def main() -> None:
        probes = [asyncio.create_task(shared.engine.check_health()) for _ in range(20)]
        await asyncio.sleep(0)
        probes[0].cancel()
        results = await asyncio.gather(*probes, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 19
        await shared.engine.check_health()

    shared.run(main())
    assert questions == [(0, "check_health")] * 2


def test_one_of_two_engines_that_died_leaves_a_healthy_front_end(serve):
    served = serve(data_parallel_size=2)
    served.run(served.engine.check_health())
    os.kill(served.engine.engine_pids["engine 1"], signal.SIGKILL)
    eventually(lambda: served.engine.engine_core.engines[1].dead)
    served.run(served.engine.check_health())
    assert not served.engine.errored


def test_the_last_engine_that_dies_while_it_is_asked_ends_the_probe(serve):
    served = serve(engine_recovery="end")
    pid = served.engine.engine_pids["engine 0"]
    os.kill(pid, signal.SIGSTOP)

    async def main() -> None:
        probe = asyncio.create_task(served.engine.check_health())
        await asyncio.sleep(0.05)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="signal SIGKILL"):
            await probe

    served.run(main())
