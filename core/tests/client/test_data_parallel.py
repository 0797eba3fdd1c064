"""Several engines behind one front end: real processes, real signals (DP-1 to DP-11, AF-18, AF-19, AF-23)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import psutil
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

pytestmark = pytest.mark.timeout(60)


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
        one, two = serve(), serve(data_parallel_size=2)
        assert two.engine.info.num_gpu_blocks == 2 * one.engine.info.num_gpu_blocks

    def test_calls_reach_every_engine(self, serve):
        served = serve(data_parallel_size=2)
        assert served.run(served.engine.collective_rpc("echo", [7])) == [[0, 7], [0, 7]]
        assert served.run(served.engine.reset_prefix_cache())


class TestDeath:
    def test_one_of_two_takes_only_its_own_requests(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(data_parallel_size=2, observers={"rec": logger})

        async def main() -> list[Any]:
            long = params(max_tokens=400)
            jobs = [
                asyncio.ensure_future(
                    collect(served.engine, [i + 1], long, f"r{i}", data_parallel_rank=i % 2)
                )
                for i in range(8)
            ]
            await asyncio.sleep(0.3)
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
        served.engine.shutdown()  # the logger has heard everything then
        ended = [
            one
            for record in logger.records
            if record.iteration
            for one in record.iteration.finished
        ]
        errors = sorted(one.request_id for one in ended if one.finish_reason == "error")
        assert errors == ["r1", "r3", "r5", "r7"]
        seen = [
            record.scheduler
            for record in logger.records
            if record.engine_index == 1 and record.scheduler
        ]
        assert any(one.num_running for one in seen)
        assert seen[-1] == SchedulerStats()  # an engine that is gone has nothing to do

    def test_the_last_one_ends_everything(self, serve):
        served = serve(data_parallel_size=2)
        for pid in served.engine.engine_pids.values():
            os.kill(pid, signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))


class TestScale:
    def test_up_and_down_under_load_loses_nothing(self, serve):
        """One engine, three, two; every request is answered and the logger hears of every engine (Q11)."""
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(observers={"rec": logger})

        async def main() -> list[list[int]]:
            done: list[list[int]] = []
            stop = asyncio.Event()

            async def client(number: int) -> None:
                turn = 0
                while not stop.is_set():
                    turn += 1
                    done.append(
                        await collect(
                            served.engine,
                            [number + 1, 5],
                            params(max_tokens=20),
                            f"{number}.{turn}",
                        )
                    )

            jobs = [asyncio.ensure_future(client(number)) for number in range(12)]
            await asyncio.sleep(0.3)
            await served.engine.scale(3)
            assert served.engine.info.engine_indexes == (0, 1, 2)
            await asyncio.sleep(0.5)
            await served.engine.scale(2)
            await asyncio.sleep(0.3)
            stop.set()
            await asyncio.gather(*jobs)
            return done

        done = served.run(main())
        assert len(done) > 36
        assert {tuple(ids) for ids in done} == {tuple(ids) for ids in expected(12)}
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1"]
        eventually(lambda: {record.engine_index for record in logger.records} == {0, 1, 2})
        assert [info.engine_indexes for info in logger.infos] == [(0,), (0, 1, 2), (0, 1)]

    def test_who_joins_is_started_here(self, serve):
        """`data_parallel_size_local` shares out the engines of the start; other nodes start none of later ones."""
        served = serve(data_parallel_size_local=1, start_timeout=10)
        served.run(served.engine.scale(3))
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1", "engine 2"]

    def test_who_joins_learns_how_many_they_are(self, serve):
        """HS-8: the handshake says so, whatever the configuration was at the start."""
        served = serve()
        served.run(served.engine.scale(3))
        assert served.run(served.engine.collective_rpc("data_parallel_size")) == [1, 3, 3]

    def test_engines_that_cannot_start_change_nothing(self, serve):
        """PM-7."""
        served = serve(worker="tenonry_testkit.kernel.faulty:FirstEngineWorker")
        before = served.engine.engine_pids
        with pytest.raises(
            LaunchError, match=r"engine [12] could not start: no weights for this one"
        ):
            served.run(served.engine.scale(3))
        assert served.engine.engine_pids == before
        assert served.engine.info.engine_indexes == (0,)
        assert served.run(many(served, 4)) == expected(4)

    def test_the_same_size_changes_nothing(self, serve):
        served = serve()
        before = served.engine.engine_pids
        served.run(served.engine.scale(1))
        assert served.engine.engine_pids == before

    def test_one_that_died_comes_back_with_its_number_and_another_epoch(self, serve):
        """So that late frames of its predecessor are known for what they are."""
        served = serve(data_parallel_size=2)
        client = served.engine._client
        before = {index: link.epoch for index, link in client.engines.items()}
        os.kill(served.engine.engine_pids["engine 1"], signal.SIGKILL)
        eventually(lambda: client.engines[1].dead)
        served.run(served.engine.scale(2))
        assert {index: link.epoch for index, link in client.engines.items()} == {
            0: before[0],
            1: before[1] + 1,
        }
        assert served.run(many(served, 4, data_parallel_rank=1)) == expected(4)

    def test_an_engine_that_does_not_drain_stays(self, serve):
        served = serve(data_parallel_size=2)

        async def main() -> list[int]:
            job = asyncio.ensure_future(
                collect(served.engine, [3], params(max_tokens=300), "long", data_parallel_rank=1)
            )
            await asyncio.sleep(0.1)
            with pytest.raises(
                TimeoutError,
                match=r"1 requests still run on engines \[1\] after 0.05 s; nothing changed",
            ):
                await served.engine.scale(1, drain_timeout=0.05)
            return await job

        assert served.run(main()) == tokens([3], params(max_tokens=300))
        assert len(served.engine.engine_pids) == 2

    def test_an_engine_stays_if_those_that_were_to_stay_died(self, serve):
        served = serve(data_parallel_size=2)

        async def main() -> list[int]:
            job = asyncio.ensure_future(
                collect(served.engine, [3], params(max_tokens=300), "long", data_parallel_rank=1)
            )
            await asyncio.sleep(0.1)
            scale = asyncio.ensure_future(served.engine.scale(1))
            await asyncio.sleep(0.05)  # engine 1 finishes what it has
            os.kill(served.engine.engine_pids["engine 0"], signal.SIGKILL)
            with pytest.raises(LaunchError, match=r"were to stay died; engines \[1\] stay instead"):
                await scale
            assert await job == tokens([3], params(max_tokens=300))
            return await collect(served.engine, [4], params(), "after")

        assert served.run(main()) == tokens([4], params())

    def test_a_shrink_that_is_given_up_leaves_the_engine_in_use(self, serve):
        served = serve(data_parallel_size=2)

        async def main() -> list[int]:
            job = asyncio.ensure_future(
                collect(served.engine, [3], params(max_tokens=200), "long", data_parallel_rank=1)
            )
            await asyncio.sleep(0.1)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await served.engine.scale(1)
            await job
            return await collect(served.engine, [4], params(), "after", data_parallel_rank=1)

        assert served.run(main()) == tokens([4], params())

    @pytest.mark.parametrize("how", ["at once", "before they connect", "from a thread"])
    def test_a_shutdown_meanwhile_ends_it_in_words(self, serve, monkeypatch, how):
        """Nobody closes a socket that the start still reads, and nothing that it started stays."""
        served = serve()
        engine, join = served.engine, served.engine._engines._join

        def joined(facts: Any) -> None:
            join(facts)
            engine.shutdown()

        async def main() -> None:
            if how == "before they connect":
                monkeypatch.setattr(engine._engines, "_join", joined)
            job = asyncio.ensure_future(engine.scale(3))
            await asyncio.sleep(0 if how == "at once" else 0.05)
            if how == "from a thread":
                await asyncio.to_thread(engine.shutdown)
            elif how != "before they connect":
                engine.shutdown()
            with pytest.raises((LaunchError, EngineDeadError), match="shut down"):
                await job

        before = set(threading.enumerate())
        served.run(main())
        assert not psutil.Process().children(recursive=True)
        served.runner.close()
        assert set(threading.enumerate()) <= before

    def test_a_shutdown_while_engines_leave_starts_nothing(self, serve):
        served = serve(data_parallel_size=2)
        before = set(threading.enumerate())

        async def main() -> None:
            stream = served.engine.generate(
                [3], params(max_tokens=400), "long", data_parallel_rank=1
            )
            await anext(stream)
            job = asyncio.ensure_future(served.engine.scale(1))
            await asyncio.sleep(0.05)
            served.engine.shutdown()
            await asyncio.wait_for(asyncio.wait([job]), 5)
            with pytest.raises(EngineDeadError, match="shut down"):
                async for _ in stream:
                    pass

        served.run(main())
        served.runner.close()
        assert set(threading.enumerate()) <= before

    def test_a_shrink_that_nobody_waits_for_is_one_all_the_same(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(data_parallel_size=2, observers={"rec": logger})
        engine = served.engine

        async def main() -> None:
            job = asyncio.ensure_future(engine.scale(1))
            while len(engine._client.engines) > 1:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert engine.info.engine_indexes == (0,)
            assert await collect(engine, [4], params(), "after") == tokens([4], params())

        served.run(main())
        eventually(lambda: sorted(engine.engine_pids) == ["engine 0"])
        eventually(lambda: [info.engine_indexes for info in logger.infos] == [(0, 1), (0,)])

    def test_no_engine_is_refused(self, serve):
        served = serve()
        with pytest.raises(ConfigError, match="0 engines: at least 1"):
            served.run(served.engine.scale(0))


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
                await asyncio.sleep(0.3)
                seen.append(await steps())
                await asyncio.sleep(0.2)
                assert await steps() == seen[-1], "they have nothing to do, and still step"
            return seen

        for turn, (one, two) in enumerate(served.run(main())):
            assert sum(one) == sum(two), f"turn {turn}: {one} against {two}"
            assert min(one[1], two[1]) >= (0 if turn == 0 else 40)

    def test_an_engine_says_that_its_work_is_over_while_it_steps_for_others(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(
            model="fake-lockstep", data_parallel_size=2, observers={"rec": logger},
            worker={"name": "tenonry_testkit.kernel.faulty:CountingWorker", "options": {"delay_s": 0.02}},
        )  # fmt: skip

        def is_over(index: int) -> bool:
            records = [
                one.scheduler
                for one in logger.records
                if one.engine_index == index and one.scheduler
            ]
            return bool(records) and records[-1].num_running == 0

        async def main() -> None:
            long = asyncio.create_task(
                collect(served.engine, [3], params(max_tokens=55), "long", data_parallel_rank=0)
            )
            await collect(served.engine, [4], params(max_tokens=3), "short", data_parallel_rank=1)
            await asyncio.to_thread(eventually, lambda: is_over(1))
            assert not long.done()
            await long

        served.run(main())

    def test_requests_on_both_sides(self, serve):
        served = serve(model="fake-lockstep", data_parallel_size=2, data_parallel_sync_steps=4)
        assert served.run(many(served, 24)) == expected(24)

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
        served = serve(model="fake-lockstep", data_parallel_size=2)
        os.kill(served.engine._engines.fleet.pids()[name], signal.SIGKILL)
        eventually(lambda: served.engine.errored)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            served.run(many(served, 1))

    def test_a_coordinator_that_ends_while_they_start_ends_the_start(self, serve, monkeypatch):
        """HS-13: nobody could wake them, or tell them when to pause."""
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
