"""Several engines behind one front end: real processes, real signals (DP-1 to DP-3, DP-10)."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, RequestError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import SchedulerStats
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
        served = serve(data_parallel_size=2, engine_recovery="end", observers={"rec": logger})

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
            while not any(stats.num_running for stats in seen()):  # noqa: ASYNC110 - no event reports it
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
        served = serve(data_parallel_size=2, engine_recovery="end")
        for pid in served.engine.engine_pids.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))
