"""Engines that step together die together, are started again together, and their streams go on (AF-24, DP-9)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, EngineGenerateError
from tenonry.launch.fleet import EngineFleet
from tenonry_testkit.kernel.served import Served
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens
from tenonry_testkit.tiers import nightly_unless

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
FAULTY = "tenonry_testkit.kernel.faulty:FaultyWorker"
LONG = params(max_tokens=60)
NUM_STREAMS = 8


def lockstep(serve: Any, **values: Any) -> Served:
    options = values.pop("options", {})
    return serve(
        model="fake-lockstep",
        data_parallel_size=2,
        **{"engine_recovery": "resume", **values},
        data_parallel_sync_steps=4,
        worker={"name": FAULTY, "options": {"delay_s": 0.01, **options}},
    )


def fleet_of(served: Served) -> EngineFleet:
    return served.engine.engines.fleet


async def streams_and(served: Served, turn: int, kill: Any) -> list[list[int]]:
    """Streams on both engines; killed once each has a token."""
    started = [asyncio.Event() for _ in range(NUM_STREAMS)]

    async def read(number: int) -> list[int]:
        got: list[int] = []
        rank = (0, 1, None)[number % 3]
        stream = served.engine.generate(
            [number + 1], LONG, f"{turn}.{number}", data_parallel_rank=rank
        )
        async for output in stream:
            got += output.outputs[0].token_ids
            started[number].set()
        return got

    jobs = [asyncio.ensure_future(read(number)) for number in range(NUM_STREAMS)]
    await asyncio.gather(*(event.wait() for event in started))
    kill()
    return await asyncio.gather(*jobs)


WANTED = [tokens([number + 1], LONG) for number in range(NUM_STREAMS)]


@pytest.mark.parametrize(
    "names",
    nightly_unless(
        lambda names: names in (["engine 1"], ["coordinator"]),
        [["engine 0"], ["engine 1"], ["coordinator"], ["engine 0", "engine 1"]],
    ),
)
def test_all_are_started_again_and_streams_go_on(serve, names):
    """With another coordinator, and another place to meet."""
    served = lockstep(serve)

    async def main() -> None:
        for turn in range(2):
            before = fleet_of(served).pids()
            places = fleet_of(served).companion.rendezvous

            def kill(pids: dict[str, int] = before) -> None:
                for name in names:
                    os.kill(pids[name], signal.SIGKILL)

            assert await streams_and(served, turn, kill) == WANTED
            after = fleet_of(served).pids()
            assert after.keys() == before.keys()
            assert not set(after.values()) & set(before.values())
            assert fleet_of(served).companion.rendezvous != places
            assert {link.epoch for link in served.engine.engine_core.engines.values()} == {turn + 2}

    served.run(main())


def test_a_request_that_kills_ends_alone(serve):
    """It is tried when all of them are back; the others go on."""
    served = lockstep(serve, options={"exit_token": 7})
    harmless = params(max_tokens=60, allowed_token_ids=list(range(100, 200)))
    prompts = [[number, 5] for number in range(10, 16)]

    async def main() -> list[Any]:
        jobs = [
            collect(served.engine, prompt, harmless, f"r{number}", data_parallel_rank=number % 2)
            for number, prompt in enumerate(prompts)
        ]
        poison = collect(served.engine, [7], params(), "poison", data_parallel_rank=1)
        return await asyncio.gather(*jobs, poison, return_exceptions=True)

    *others, killer = served.run(main())
    assert others == [tokens(prompt, harmless) for prompt in prompts]
    assert isinstance(killer, EngineGenerateError)
    assert "engines died while it ran" in str(killer)


def test_all_are_given_up_together(serve):
    served = lockstep(serve, engine_recovery={"name": "resume", "options": {"max_restarts": 1}})

    async def main() -> None:
        for turn in range(2):
            pid = fleet_of(served).pids()["engine 1"]
            await streams_and(served, turn, lambda pid=pid: os.kill(pid, signal.SIGKILL))

    with pytest.raises(EngineDeadError, match="all have failed"):
        served.run(main())
    eventually(lambda: served.engine.errored)
