"""Engines that join and leave while requests run (AF-18, AF-19, AF-23, DP-11)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import psutil
import pytest

from tenonry.errors import ConfigError, EngineDeadError, EngineGenerateError, LaunchError
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.handshake import Handshake
from tenonry_testkit.call_set import CallSetContract
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]


class TestContract(CallSetContract):
    call_set = "tenonry_scale_out.engine_scaling:Scaling"


async def many(served: Served, count: int, **fields: Any) -> list[list[int]]:
    return await asyncio.gather(
        *(
            collect(served.engine, [i + 1, 5], params(max_tokens=20), f"r{i}", **fields)
            for i in range(count)
        )
    )


def expected(count: int) -> list[list[int]]:
    return [tokens([i + 1, 5], params(max_tokens=20)) for i in range(count)]


LONG = params(max_tokens=50)


async def busy(served: Served) -> asyncio.Task[list[int]]:
    """A request that was sent to engine 1."""
    job = asyncio.create_task(collect(served.engine, [3], LONG, "long", data_parallel_rank=1))
    while not served.engine.engine_core.engines[1].requests:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0)
    return job


@contextlib.contextmanager
def stopped(served: Served, index: int) -> Iterator[None]:
    """An engine is suspended, and finishes nothing."""
    pid = served.engine.engine_pids[f"engine {index}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


class TestCallsWhileAnEngineLeaves:
    """A call is sent to each engine one turn of the loop after it was made; an engine may have left by then."""

    @staticmethod
    async def lose_one_during(served: Served, call: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.create_task(call)
        loop = asyncio.get_running_loop()
        loop.call_soon(served.engine.engine_core.remove_engine, 1, "it was scaled away")
        return await task

    def test_a_call_fails_with_the_engine_that_is_gone(self, serve):
        served = serve(data_parallel_size=2)
        with pytest.raises(EngineDeadError, match="engine 1 is gone"):
            served.run(self.lose_one_during(served, served.engine.reset_prefix_cache()))
        assert served.run(served.engine.reset_prefix_cache()) is True

    def test_the_front_end_stays_healthy(self, serve):
        served = serve(data_parallel_size=2)
        served.run(self.lose_one_during(served, served.engine.check_health()))
        assert sorted(served.engine.engine_core.engines) == [0]


class TestScale:
    def test_up_and_down_under_load_loses_nothing(self, serve):
        """One engine, three, two; every request is answered and the logger gets records of every engine (Q11)."""
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

            async def several_more() -> None:
                before = len(done)
                while len(done) < before + 24:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0.01)

            jobs = [asyncio.ensure_future(client(number)) for number in range(12)]
            await several_more()
            await served.engine.scale(3)
            assert served.engine.info.engine_indexes == (0, 1, 2)
            await several_more()
            await served.engine.scale(2)
            await several_more()
            stop.set()
            await asyncio.gather(*jobs)
            return done

        done = served.run(main())
        assert {tuple(ids) for ids in done} == {tuple(ids) for ids in expected(12)}
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1"]
        eventually(lambda: {record.engine_index for record in logger.records} == {0, 1, 2})
        assert [info.engine_indexes for info in logger.infos] == [(0,), (0, 1, 2), (0, 1)]

    def test_an_engine_that_joins_is_started_here(self, serve):
        """`data_parallel_size_local` shares out the engines of the start; other nodes start none of later ones."""
        served = serve(data_parallel_size_local=1, start_timeout=10)
        served.run(served.engine.scale(3))
        assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1", "engine 2"]

    def test_an_engine_that_joins_learns_how_many_they_are(self, serve):
        """HS-8: the handshake contains the number, whatever the configuration was at the start."""
        served = serve()
        served.run(served.engine.scale(3))
        assert served.run(served.engine.collective_rpc("data_parallel_size")) == [1, 3, 3]

    def test_engines_that_join_have_the_adapters_before_they_get_requests(self, serve, monkeypatch):
        """AF-15: a request with an adapter never comes before it."""
        served = serve()
        front_end = served.engine
        load = front_end.events.on_join
        seen = []

        async def watched(*joined: Any) -> None:
            seen.append(sorted(front_end.engine_core.newcomers))
            await load(*joined)
            seen.append(await many(served, 4))  # the engine that joins takes none of them
            seen.append(len(front_end.engine_core.newcomers[1].requests))

        monkeypatch.setattr(front_end.events, "on_join", watched)
        served.run(front_end.scale(2))
        assert seen == [[1], expected(4), 0]
        assert served.run(many(served, 4, data_parallel_rank=1)) == expected(4)

    def test_engines_that_cannot_load_the_adapters_do_not_join(self, serve):
        served = serve()
        before = served.engine.engine_pids
        served.engine.calls["adapters"]._paths["gone"] = "/gone"  # as if loaded; this worker cannot
        with pytest.raises(EngineGenerateError, match="does not support 'add_lora'"):
            served.run(served.engine.scale(2))
        assert served.engine.engine_pids == before
        assert served.run(many(served, 4)) == expected(4)

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
        """So that late frames of its predecessor are recognised."""
        served = serve(data_parallel_size=2)
        client = served.engine.engine_core
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
            text = r"1 requests still run on engines \[1\] after 0.05 s; nothing changed"
            with stopped(served, 1):
                job = await busy(served)
                with pytest.raises(TimeoutError, match=text):
                    await served.engine.scale(1, drain_timeout=0.05)
            return await job

        assert served.run(main()) == tokens([3], LONG)
        assert len(served.engine.engine_pids) == 2

    def test_an_engine_stays_if_those_that_were_to_stay_died(self, serve):
        served = serve(data_parallel_size=2)

        async def main() -> list[int]:
            client = served.engine.engine_core
            with stopped(served, 1):
                job = await busy(served)
                scale = asyncio.ensure_future(served.engine.scale(1))
                while 1 not in client.leaving:  # noqa: ASYNC110 - no event reports it
                    await asyncio.sleep(0)
                os.kill(served.engine.engine_pids["engine 0"], signal.SIGKILL)
                while not client.engines[0].dead:  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.01)
            with pytest.raises(
                LaunchError, match=r"remaining engines failed; engines \[1\] stay instead"
            ):
                await scale
            assert await job == tokens([3], LONG)
            return await collect(served.engine, [4], params(), "after")

        assert served.run(main()) == tokens([4], params())

    def test_a_shrink_that_is_given_up_leaves_the_engine_in_use(self, serve):
        served = serve(data_parallel_size=2)

        async def main() -> list[int]:
            with stopped(served, 1):
                job = await busy(served)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await served.engine.scale(1)
            await job
            return await collect(served.engine, [4], params(), "after", data_parallel_rank=1)

        assert served.run(main()) == tokens([4], params())

    @pytest.mark.parametrize("how", ["at once", "before they connect", "from a thread"])
    def test_a_shutdown_meanwhile_ends_it_in_words(self, serve, monkeypatch, how):
        """No socket is closed that the start still reads, and nothing that it started stays."""
        served = serve()
        engine, expect = served.engine, served.engine.engine_core.expect
        fleet = engine.engines.fleet
        shake_hands = Handshake.run
        begun = threading.Event()

        def shut_down(facts: Any) -> None:
            expect(facts)
            engine.shutdown()

        def shake_hands_late(*arguments: Any) -> Any:
            begun.set()
            eventually(lambda: fleet._closing)
            return shake_hands(*arguments)

        async def main() -> None:
            if how == "before they connect":
                monkeypatch.setattr(engine.engine_core, "expect", shut_down)
            if how == "from a thread":
                monkeypatch.setattr(Handshake, "run", shake_hands_late)
            job = asyncio.ensure_future(engine.scale(3))
            await asyncio.sleep(0)
            if how == "from a thread":
                assert await asyncio.to_thread(begun.wait, 30)
                await asyncio.to_thread(engine.shutdown)
            elif how != "before they connect":
                engine.shutdown()
            with pytest.raises((LaunchError, EngineDeadError), match="shut down"):
                await job

        before = set(threading.enumerate())
        served.run(main())
        assert not psutil.Process().children(recursive=True)
        served.runner.close()
        # Those that watched the children end a moment after them.
        eventually(lambda: set(threading.enumerate()) <= before)

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
            await asyncio.wait_for(asyncio.wait([job]), 20)
            with pytest.raises(EngineDeadError, match="shut down"):
                async for _ in stream:
                    pass

        served.run(main())
        served.runner.close()
        eventually(lambda: set(threading.enumerate()) <= before)

    def test_a_shrink_whose_caller_is_cancelled_is_completed(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(data_parallel_size=2, observers={"rec": logger})
        engine = served.engine

        async def main() -> None:
            job = asyncio.ensure_future(engine.scale(1))
            while len(engine.engine_core.engines) > 1:  # noqa: ASYNC110 - no event reports it
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
