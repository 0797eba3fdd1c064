"""Servers with one engine each whose engines step together: two front ends in this process, and an engine for each."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tenonry.client.async_llm import AsyncLLM
from tenonry.config import EngineConfig
from tenonry.errors import (
    ConfigError,
    EngineDeadError,
    EngineGenerateError,
    LaunchError,
    RequestError,
    Unsupported,
)
from tenonry.transport.keys import CurveKeys
from tenonry_scale_out import reports
from tenonry_scale_out.group import JoinedEngines, check_group, engines_of_group
from tenonry_testkit.processes import free_port
from tenonry_testkit.served import FAKES, collect, params, served_config, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
T = TypeVar("T")
RECORDING = "tenonry_testkit.fakes:RecordingStatLogger"
SLEEPER = {"name": "tenonry_testkit.kernel.faulty:SleepyWorker", "options": {"delay_s": 0.002}}


class Group:
    """Common state of a group's servers; they start in threads, and are used on one event loop."""

    def __init__(self, folder: Path) -> None:
        keys = folder / "keys"
        keys.touch(0o600)
        keys.write_text(CurveKeys.generate().encode())
        self.values: dict[str, Any] = {
            "model": "fake-lockstep", "data_parallel_size": 2, "data_parallel_rpc_port": free_port(),
            "auth_key_file": str(keys), "expert_rendezvous": "tcp://127.0.0.1:9", "data_parallel_sync_steps": 4,
            "start_timeout": 20.0, "stat_loggers": (RECORDING,),
        }  # fmt: skip
        self.runner = asyncio.Runner()
        self._threads = ThreadPoolExecutor()
        self._made: list[AsyncLLM] = []
        self._joining: list[JoinedEngines] = []

    def config(self, **values: Any) -> EngineConfig:
        return served_config(**{**self.values, **values})

    def begin(self, rank: int, **values: Any) -> Future[AsyncLLM]:
        return self._threads.submit(self._make, self.config(data_parallel_rank=rank, **values))

    def _make(self, config: EngineConfig) -> AsyncLLM:
        engines = engines_of_group(config)
        if isinstance(engines, JoinedEngines):
            self._joining.append(engines)
        self._made.append(AsyncLLM(config, engines=engines))
        return self._made[-1]

    def is_answered(self, rank: int) -> bool:
        """Return True if the leader has accepted the engine of a server that starts."""
        return any(engines.reports.engines == [rank] for engines in self._joining)

    def both(self, **values: Any) -> tuple[AsyncLLM, AsyncLLM]:
        starts = [self.begin(rank, **values) for rank in (1, 0)]
        second, first = (start.result() for start in starts)
        return first, second

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(main)

    def close(self) -> None:
        for engine in self._made:
            engine.shutdown()
        self._threads.shutdown()
        self.runner.close()


@pytest.fixture
def group(fake_model_site: Any, tmp_path: Path, monkeypatch: Any) -> Iterator[Group]:
    monkeypatch.setattr(reports, "SILENCE_S", 3.0)
    made = Group(tmp_path)
    yield made
    made.close()


def recorded(engine: AsyncLLM) -> Any:
    (logger,) = engine.stat_loggers.values()
    return logger


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - many conditions, no event for most
            await asyncio.sleep(0.01)


def test_each_server_serves_its_own_engine_and_all_step_together(group):
    first, second = group.both()
    assert (first.info.engine_indexes, second.info.engine_indexes) == ((0,), (1,))
    assert (list(first.engine_pids), list(second.engine_pids)) == (["engine 0"], ["engine 1"])

    async def main() -> None:
        for alone in (first, second):  # the other engine computes along
            assert await collect(alone, [3], params(), "alone") == tokens([3], params())
        jobs = [
            collect(engine, [number + 1, 5], params(max_tokens=20), f"r{number}")
            for engine in (first, second)
            for number in range(8)
        ]
        wanted = [tokens([number + 1, 5], params(max_tokens=20)) for number in range(8)]
        assert await asyncio.gather(*jobs) == 2 * wanted
        assert await collect(second, [4], params(), "own", data_parallel_rank=1) == tokens(
            [4], params()
        )
        for engine, other, own in ((first, 1, 0), (second, 0, 1)):
            with pytest.raises(RequestError, match=f"no such engine; the ranks here are {own}"):
                await collect(engine, [4], params(), "other", data_parallel_rank=other)
        counts = await first.collective_rpc("count_steps")
        assert all(dummies for _, dummies in counts)

    group.run(main())
    for index, engine in enumerate((first, second)):
        engine.shutdown()  # its logger has everything then
        seen = [record for record in recorded(engine).records if record.scheduler]
        assert {record.engine_index for record in seen} == {index}
        assert any(record.scheduler.num_running for record in seen)


def test_no_server_is_ready_before_the_engines_of_all_are(group):
    group.values["data_parallel_size"] = 3
    starts = [group.begin(rank) for rank in (1, 0)]
    with pytest.raises(TimeoutError):
        starts[0].result(2)
    assert not starts[1].done()
    engines = [group.begin(2).result(), *(start.result() for start in starts)]

    async def main() -> None:
        for engine in engines:
            assert await collect(engine, [3], params(), "r") == tokens([3], params())

    group.run(main())


def test_calls_for_all_go_through_the_leader(group):
    first, second = group.both(worker=SLEEPER)

    async def main() -> None:
        assert await first.collective_rpc("echo", [7]) == [[0, 7], [0, 7]]
        assert await second.reset_prefix_cache()
        await second.check_health()
        for call in (
            second.sleep(),
            second.start_profile(),
            second.update_weights("/x"),
            second.save_sharded_state("/x"),
            second.collective_rpc("echo", [7]),
            second.pause_generation(keep=True),
        ):
            with pytest.raises(EngineGenerateError, match="ask the server of data_parallel_rank=0"):
                await call
        for engine in (first, second):
            with pytest.raises(Unsupported, match="the engines of 2 servers step together"):
                await engine.scale(3)
        assert await collect(second, [3], params(), "after") == tokens([3], params())
        await second.pause_generation()
        await second.resume_generation()
        await first.sleep()
        assert await second.is_sleeping()
        job = asyncio.ensure_future(collect(second, [3], params(), "waits"))
        await asyncio.sleep(0.1)
        assert not job.done()
        await first.wake_up()
        assert await job == tokens([3], params())

    group.run(main())


@pytest.mark.nightly_after(1)
@pytest.mark.parametrize("rank", [0, 1])
def test_an_engine_that_dies_ends_the_requests_of_all(group, rank):
    """`test_grouped_servers` covers the wait for the end of the leader's process, with real processes."""
    engines = group.both(worker={"name": f"{FAKES}:FakeWorker", "options": {"delay_s": 0.01}})

    async def main() -> None:
        long = params(max_tokens=500)
        jobs = [asyncio.ensure_future(collect(engine, [3], long, "long")) for engine in engines]
        await asyncio.sleep(0.2)
        os.kill(engines[rank].engine_pids[f"engine {rank}"], signal.SIGKILL)
        await until(lambda: engines[0].errored)
        if rank == 0:
            await asyncio.to_thread(engines[0].shutdown)
        for job in jobs:
            with pytest.raises(EngineDeadError, match=r"engine|rank 0"):
                await asyncio.wait_for(job, 30)
        assert all(engine.errored for engine in engines)

    group.run(main())


class TestWhoJoins:
    def test_a_rank_that_is_there_is_refused_and_harms_none(self, group):
        first, second = group.both()
        with pytest.raises(LaunchError, match="it has a server of data_parallel_rank=1; start"):
            group.begin(1).result()

        async def main() -> None:
            await asyncio.sleep(1.2)  # a report later
            for engine in (first, second):
                assert await collect(engine, [3], params(), "r") == tokens([3], params())

        group.run(main())

    def test_a_rank_given_twice_ends_the_start(self, group):
        group.values["data_parallel_size"] = 3  # one never comes
        starts = [group.begin(0), group.begin(1)]
        group.run(until(lambda: group.is_answered(1)))
        starts.append(group.begin(1))
        with pytest.raises(LaunchError, match=r"remote engine 1 sent HELLO .* is it started twice"):
            starts[0].result()
        for start in starts[1:]:
            with pytest.raises(LaunchError, match=r"rank 0 at tcp://127.0.0.1:.* for 3 s|engine 1"):
                start.result()

    def test_without_a_leader_the_wait_ends(self, group):
        with pytest.raises(LaunchError, match=r"no answer from the server of rank 0 at tcp://127"):
            group.begin(1, start_timeout=0.3).result()

    def test_a_first_node_that_leads_no_group_is_named_on_both_sides(self, group):
        joined = group.begin(1)
        with pytest.raises(LaunchError, match=r"engine 1 could not start: .* leads no group"):
            AsyncLLM(group.config(data_parallel_size_local=1))
        with pytest.raises(LaunchError, match="leads no group of servers; start it with"):
            joined.result()

    def test_an_engine_that_cannot_start_is_named_on_both_sides(self, group):
        broken = {
            "name": "tenonry_testkit.fakes:FakeWorker",
            "options": {"fail_load": "no such file"},
        }
        starts = [group.begin(0), group.begin(1, worker=broken)]
        for start in starts:
            with pytest.raises(LaunchError, match="engine 1 could not start: no such file"):
                start.result()

    def test_other_plugins_are_refused_by_name(self, group):
        starts = [group.begin(0), group.begin(1, worker=SLEEPER)]
        with pytest.raises(
            LaunchError, match=r"has worker .*SleepyWorker.*give both nodes the same"
        ):
            starts[0].result()
        with pytest.raises(LaunchError, match=r"has said nothing for 3 s|engine 1"):
            starts[1].result()


DISTANT = "tenonry_testkit.kernel.launch_roles:DistantLauncher"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"data_parallel_rank": 2}, "data_parallel_size=2 have the ranks 0 to 1"),
        ({"auth_key_file": None}, "--auth-key-file; that server needs --expert-rendezvous"),
        (
            {"data_parallel_rpc_port": 0},
            "need --data-parallel-address and --data-parallel-rpc-port",
        ),
        ({"data_parallel_rank": 0, "expert_rendezvous": ""}, "needs --expert-rendezvous, too"),
        ({"data_parallel_size_local": 2}, "leave out --data-parallel-size-local"),
        ({"data_parallel_start_rank": 1}, "leave out --data-parallel-size-local"),
        ({"launcher": DISTANT}, "DistantLauncher with data_parallel_rank=1"),
    ],
)
@pytest.mark.usefixtures("fake_model_site")
def test_what_is_missing_is_named(values, words):
    full = {
        "data_parallel_size": 2, "data_parallel_rank": 1, "data_parallel_rpc_port": 9, "auth_key_file": "/k",
        "expert_rendezvous": "tcp://127.0.0.1:9",
    }  # fmt: skip
    check_group(served_config(**full))
    with pytest.raises(ConfigError, match=words):
        check_group(served_config(**{**full, **values}))
