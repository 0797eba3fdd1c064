"""Several engines behind one front end: real processes, real signals (DP-1 to DP-10)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenonry.errors import (
    ConfigError,
    EngineDeadError,
    EngineGenerateError,
    LaunchError,
    RequestError,
)
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import RequestType
from tenonry.stats import SchedulerStats
from tenonry.step import Adapter
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]


async def many(served: Served, count: int, **fields: Any) -> list[list[int]]:
    return await asyncio.gather(
        *(
            collect(served.engine, [i + 1, 5], params(max_tokens=20), f"r{i}", **fields)
            for i in range(count)
        )
    )


def expected(count: int) -> list[list[int]]:
    return [tokens([i + 1, 5], params(max_tokens=20)) for i in range(count)]


class TestTwoEngines:
    def test_both_work_and_answer_as_one_would(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(data_parallel_size=2, observers={"rec": logger})
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1"]
        assert served.engine.info.engine_indexes == (0, 1)
        assert served.run(many(served, 64)) == expected(64)
        eventually(lambda: {record.engine_index for record in logger.records} == {0, 1})

    def test_a_pinned_request_goes_where_it_says(self, serve):
        served = serve(data_parallel_size=2)
        assert served.run(many(served, 8, data_parallel_rank=1)) == expected(8)
        with pytest.raises(
            RequestError, match="rank=2: there is no such engine; the ranks here are 0, 1"
        ):
            served.run(many(served, 1, data_parallel_rank=2))

    def test_blocks_are_summed(self, serve):
        """HS-16."""
        single, double = serve(), serve(data_parallel_size=2)
        assert double.engine.info.num_gpu_blocks == 2 * single.engine.info.num_gpu_blocks

    def test_calls_reach_every_engine(self, serve):
        served = serve(data_parallel_size=2)
        assert served.run(served.engine.collective_rpc("echo", [7])) == [[0, 7], [0, 7]]
        assert served.run(served.engine.reset_prefix_cache())


class TestDeath:
    def test_one_of_two_takes_only_its_own_requests(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(data_parallel_size=2, engine_death="stop", observers={"rec": logger})

        def seen() -> list[SchedulerStats]:
            records = [record for record in logger.records if record.engine_index == 1]
            return [record.scheduler for record in records if record.scheduler]

        async def main() -> list[Any]:
            long = params(max_tokens=400)
            jobs = [
                asyncio.ensure_future(
                    collect(served.engine, [i + 1], long, f"r{i}", data_parallel_rank=i % 2)
                )
                for i in range(8)
            ]
            while not any(stats.num_running for stats in seen()):  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.01)
            os.kill(served.engine.engine_pids["engine 1"], signal.SIGKILL)
            async with asyncio.timeout(20):
                results: list[Any] = await asyncio.gather(*jobs, return_exceptions=True)
            return [*results, await collect(served.engine, [9], params(), "after")]

        *results, after = served.run(main())
        assert results[0::2] == [tokens([i + 1], params(max_tokens=400)) for i in range(0, 8, 2)]
        for error in results[1::2]:
            assert isinstance(error, EngineDeadError)
            assert "engine 1" in str(error)
            assert "SIGKILL" in str(error)
        assert after == tokens([9], params())
        assert not served.engine.errored
        served.engine.shutdown()  # the logger has everything then
        ended = [
            request
            for record in logger.records
            if record.iteration
            for request in record.iteration.finished
        ]
        errors = sorted(request.request_id for request in ended if request.finish_reason == "error")
        assert errors == ["r1", "r3", "r5", "r7"]
        assert seen()[-1] == SchedulerStats()  # an engine that is gone has nothing to do

    def test_the_last_one_ends_everything(self, serve):
        served = serve(data_parallel_size=2, engine_death="stop")
        for pid in served.engine.engine_pids.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))


class TestLockstep:
    """Models whose expert layers span engines (DP-1, DP-4 to DP-9)."""

    @pytest.mark.parametrize("depth", [1, 2])
    def test_idle_engines_take_dummy_steps_while_one_has_work(self, serve, depth):
        """And one with work does in a turn that only collects a result, or takes leave of rows."""
        served = serve(
            model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4,
            worker={"name": "tenonry_testkit.kernel.faulty:CountingWorker", "options": {"delay_s": 0.002}},
            executor={"name": "tenonry_testkit.fakes:InstantExecutor", "options": {"depth": depth, "late": depth > 1}},
        )  # fmt: skip
        assert "coordinator" in served.engine._engines.fleet.pids()

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
            client = served.engine._client
            client._send(client.engines[0], RequestType.ADD, *frames)
            client._coordinator.wake(0)
            async with asyncio.timeout(10):
                return await collect(served.engine, [4], params(), "after", data_parallel_rank=1)

        assert served.run(main()) == tokens([4], params())

    @pytest.mark.parametrize("name", ["engine 1", "coordinator"])
    def test_they_end_together(self, serve, name):
        served = serve(model="fake-lockstep", data_parallel_size=2, engine_death="stop")
        os.kill(served.engine._engines.fleet.pids()[name], signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))

    def test_a_coordinator_that_ends_while_they_start_ends_the_start(self, serve, monkeypatch):
        """HS-13: without it they could neither wake nor pause."""
        start = EngineFleet._start_coordinator

        def doomed(fleet: EngineFleet) -> Any:
            ready = start(fleet)
            os.kill(fleet.pids()["coordinator"], signal.SIGKILL)
            return ready

        monkeypatch.setattr(EngineFleet, "_start_coordinator", doomed)
        with pytest.raises(
            LaunchError,
            match=r"a process ended before it was ready \(coordinator: signal SIGKILL\)",
        ):
            serve(model="fake-lockstep", data_parallel_size=2)

    def test_their_number_is_fixed(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2)
        with pytest.raises(ConfigError, match="step together; their number is fixed"):
            served.run(served.engine.scale(3))
