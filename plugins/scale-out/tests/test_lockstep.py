"""Engines in lockstep: dummy steps, sleep, refusals, replacement (DP-1, DP-4 to DP-9)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import psutil
import pytest

from tenonry.errors import EngineDeadError, EngineGenerateError, LaunchError, Unsupported
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.supervise import Supervisor
from tenonry.messages import RequestType
from tenonry.step import Adapter
from tenonry_scale_out import companion
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
ONCE = """
from pathlib import Path
from tenonry_testkit.fakes import ReferenceScheduler

class Other(ReferenceScheduler):
    def __init__(self, context):
        Path({folder!r}, "built").mkdir()
        super().__init__(context)
"""
LONG = params(max_tokens=150)


async def many(served: Served, count: int, **fields: Any) -> list[list[int]]:
    return await asyncio.gather(
        *(
            collect(served.engine, [i + 1, 5], params(max_tokens=20), f"r{i}", **fields)
            for i in range(count)
        )
    )


def expected(count: int) -> list[list[int]]:
    return [tokens([i + 1, 5], params(max_tokens=20)) for i in range(count)]


class TestSteps:
    """Models whose expert layers span engines."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_idle_engines_take_dummy_steps_while_one_has_work(self, serve, depth):
        """And one with work does in a turn that only collects a result, or takes leave of rows."""
        served = serve(
            model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4,
            worker={"name": "tenonry_testkit.kernel.faulty:CountingWorker", "options": {"delay_s": 0.002}},
            executor={"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": depth, "late": depth > 1}},
        )  # fmt: skip
        assert "coordinator" in served.engine.engines.fleet.pids()

        async def steps() -> list[list[int]]:
            return await served.engine.collective_rpc("count_steps")

        async def settled() -> list[list[int]]:
            """Wait until they have nothing to do, and no longer step."""
            async with asyncio.timeout(20):
                while True:
                    before = await steps()
                    await asyncio.sleep(0.2)
                    if await steps() == before:
                        return before

        async def main() -> list[list[list[int]]]:
            seen = []
            for turn in range(3):
                await collect(
                    served.engine,
                    [3],
                    params(max_tokens=50),
                    f"r{turn}",
                    data_parallel_rank=turn % 2,
                )
                seen.append(await settled())
            return seen

        for turn, (first_steps, second_steps) in enumerate(served.run(main())):
            assert sum(first_steps) == sum(second_steps), (
                f"turn {turn}: {first_steps} against {second_steps}"
            )
            assert min(first_steps[1], second_steps[1]) >= (0 if turn == 0 else 40)

    def test_an_engine_says_that_its_work_is_over_while_it_steps_for_others(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(
            model="fake-lockstep", data_parallel_size=2, observers={"rec": logger},
            worker={"name": "tenonry_testkit.kernel.faulty:CountingWorker", "options": {"delay_s": 0.02}},
        )  # fmt: skip

        def is_over(index: int) -> bool:
            records = [
                record.scheduler
                for record in logger.records
                if record.engine_index == index and record.scheduler
            ]
            return bool(records) and records[-1].num_running == 0

        async def main() -> None:
            long = served.engine.generate([3], params(max_tokens=500), "long", data_parallel_rank=0)
            await anext(long)
            await collect(served.engine, [4], params(max_tokens=3), "short", data_parallel_rank=1)
            await asyncio.to_thread(eventually, lambda: is_over(1))
            assert not (await anext(long)).finished
            await long.aclose()

        served.run(main())

    def test_requests_on_both_sides(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4)
        assert served.run(many(served, 24)) == expected(24)

    def test_they_sleep_and_wake_up_together(self, serve):
        """AF-14: all have taken as many steps when they fall asleep, and when the last is awake. Requests go on."""
        served = serve(
            model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=8,
            worker={"name": "tenonry_testkit.kernel.faulty:SleepyWorker", "options": {"delay_s": 0.002}},
        )  # fmt: skip
        wanted = params(max_tokens=240)
        made: list[int] = []

        async def run() -> None:
            async for output in served.engine.generate(
                [3], wanted, "running", data_parallel_rank=0
            ):
                made.extend(output.outputs[0].token_ids)

        async def main() -> list[list[int]]:
            llm = served.engine
            first = asyncio.create_task(run())
            for level in (1, 2, 1):
                before = len(made)
                while len(made) < before + 20:  # noqa: ASYNC110 - no event says so
                    await asyncio.sleep(0.01)
                await llm.sleep(level)
                assert await llm.is_sleeping()
                steps = await llm.collective_rpc("count_steps")
                late = asyncio.create_task(
                    collect(llm, [4], params(), f"late-{level}", data_parallel_rank=1)
                )
                await asyncio.sleep(0.1)
                assert [late.done(), first.done()] == [False, False]
                assert await llm.collective_rpc("count_steps") == steps
                await llm.wake_up()
                assert not await llm.is_sleeping()
                assert await late == tokens([4], params())
            await first
            return await llm.collective_rpc("steps_at_turns")

        at_turns = served.run(main())
        assert made == tokens([3], wanted)
        first_steps, second_steps = at_turns
        assert len(first_steps) == 6
        assert first_steps == second_steps
        assert first_steps[1::2] == first_steps[::2], "one stepped before all were awake"
        assert len(set(first_steps)) == 3

    def test_a_request_that_one_engine_refuses_holds_up_no_other(self, serve):
        """The others were woken for it, and wait for the engine that refused it at the next look."""
        served = serve(
            model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4,
            worker="tenonry_testkit.fakes:FakeWorker",
        )  # fmt: skip

        async def main() -> list[int]:
            adapter = Adapter("none", "1f")
            with pytest.raises(EngineGenerateError, match="does not support 'lora'"):
                await collect(
                    served.engine, [3], params(), "refused", data_parallel_rank=0, adapter=adapter
                )
            async with asyncio.timeout(10):
                await asyncio.sleep(0.2)
                return await collect(served.engine, [4], params(), "after", data_parallel_rank=1)

        assert served.run(main()) == tokens([4], params())

    @pytest.mark.parametrize("frames", [[b"A" * 8, b"no request"], [b"no handle"]])
    def test_a_request_that_cannot_be_read_holds_up_no_other(self, serve, frames):
        """The others are woken for it, too."""
        served = serve(model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4)

        async def main() -> list[int]:
            client = served.engine.engine_core
            client._send(client.engines[0], RequestType.ADD, *frames)
            client._router.sent(0)
            async with asyncio.timeout(10):
                return await collect(served.engine, [4], params(), "after", data_parallel_rank=1)

        assert served.run(main()) == tokens([4], params())


class TestEnds:
    @pytest.mark.parametrize("name", ["engine 1", "coordinator"])
    def test_they_end_together(self, serve, name):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="end")
        os.kill(served.engine.engines.fleet.pids()[name], signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))

    def test_a_coordinator_that_ends_while_they_start_ends_the_start(self, serve, monkeypatch):
        """HS-13: without it they could neither wake nor pause."""
        start = companion.start_coordinator

        def doomed(supervisor: Supervisor, *args: Any, **options: Any) -> str:
            endpoints = start(supervisor, *args, **options)
            os.kill(supervisor.pids()["coordinator"], signal.SIGKILL)
            return endpoints

        monkeypatch.setattr(companion, "start_coordinator", doomed)
        with pytest.raises(LaunchError, match="the coordinator ended with signal SIGKILL while"):
            serve(model="fake-lockstep", data_parallel_size=2)


async def streams(served: Served, count: int) -> asyncio.Future[list[list[int]]]:
    """All of them have begun."""
    begun = [asyncio.Event() for _ in range(count)]
    jobs = [
        collect(served.engine, [n], LONG, f"r{n}", has_begun=begun[n - 1])
        for n in range(1, count + 1)
    ]
    run = asyncio.gather(*map(asyncio.ensure_future, jobs))
    await asyncio.gather(*(event.wait() for event in begun))
    return run


def complete(count: int) -> list[list[int]]:
    return [tokens([n], LONG) for n in range(1, count + 1)]


class TestReplacement:
    def test_they_are_replaced_together(self, serve):
        """With another coordinator."""
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="resume")
        before = served.engine.engine_pids

        async def main() -> list[list[int]]:
            run = await streams(served, 16)
            await served.engine.replace_engines(max_num_seqs=32)
            return await run

        assert served.run(main()) == complete(16)
        after = served.engine.engine_pids
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
        assert len(psutil.Process().children()) == 3
        again = collect(served.engine, [1], LONG, "r")
        assert served.run(again) == tokens([1], LONG)

    def test_they_stay_where_one_cannot_start(self, serve, tmp_path):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="resume")
        before = served.engine.engine_pids
        scheduler = tmp_path / "other.py"
        scheduler.write_text(ONCE.format(folder=str(tmp_path)), "utf-8")

        async def main() -> list[list[int]]:
            run = await streams(served, 8)
            with pytest.raises(LaunchError, match=r"engine . could not start"):
                await served.engine.replace_engines(scheduler=f"{scheduler}:Other")
            return await run

        assert served.run(main()) == complete(8)
        assert served.engine.engine_pids == before


class TestNumber:
    """AF-19: another number of engines replaces all of them."""

    def test_it_changes_while_streams_run(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="resume")

        async def main() -> None:
            for size in (3, 1, 2):
                run = await streams(served, 16)
                before = served.engine.engine_pids
                await served.engine.scale(size)
                after = served.engine.engine_pids
                assert [*after] == [f"engine {index}" for index in range(size)]
                assert not set(after.values()) & set(before.values())
                assert served.engine.info.engine_indexes == tuple(range(size))
                assert await run == complete(16)
                last = {"data_parallel_rank": size - 1}
                assert await collect(served.engine, [1], LONG, "r", **last) == tokens([1], LONG)

        served.run(main())
        assert served.engine.config.data_parallel_size == 2
        assert len(psutil.Process().children()) == 3

    def test_engines_that_do_not_drain_stay(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="resume")
        before = served.engine.engine_pids

        async def main() -> None:
            stream = served.engine.generate([3], LONG, "long", data_parallel_rank=1)
            await anext(stream)
            with pytest.raises(TimeoutError, match=r"1 requests still run on engines \[1\]"):
                await served.engine.scale(1, 0)
            await stream.aclose()
            assert await collect(served.engine, [4], params(), "r", data_parallel_rank=1) == (
                tokens([4], params())
            )

        served.run(main())
        assert served.engine.engine_pids == before

    def test_they_are_restarted_in_the_new_number(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="resume")

        async def main() -> None:
            await served.engine.scale(3)
            run = await streams(served, 8)
            os.kill(served.engine.engine_pids["engine 2"], signal.SIGKILL)
            assert await run == complete(8)

        served.run(main())
        assert len(served.engine.engine_pids) == 3

    def test_it_is_fixed_without_a_recovery(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_recovery="end")
        with pytest.raises(Unsupported, match="pip install tenonry-recovery"):
            served.run(served.engine.scale(3))
