"""Standby engines replace a dead one immediately; no stream notices more than a pause (AF-28)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from typing import Any

import psutil
import pytest

from tenonry.errors import ConfigError, EngineDeadError
from tenonry.interfaces.launcher import FIRST_STANDBY
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.launch.fleet import EngineFleet
from tenonry.launch.process import ProcessLauncher
from tenonry.stats import RecoveryStats
from tenonry_recovery import restarts, standbys
from tenonry_recovery.standbys import check_supported
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.kernel.mortal import set_fuse
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children", "no_delay")]
SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.01}}
LONG = params(max_tokens=60)
SEEDED = params(max_tokens=60, temperature=0.9, seed=3)


@pytest.fixture
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standbys, "DELAY_S", 0.0)
    monkeypatch.setattr(standbys, "POLL_S", 0.01)


async def ready(served: Served, count: int = 1) -> list[int]:
    """Process ids of standbys, once there are `count`."""
    served.engine.listen()
    while len(served.engine.recovery.owner.standbys.ready) < count:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.001)
    pids = served.engine.engines.pids()
    return [pid for name, pid in pids.items() if name.startswith("standby ")]


async def streams(served: Served, count: int) -> asyncio.Future[list[list[int]]]:
    """All of them have got something; every other one is drawn with a seed."""
    begun = [asyncio.Event() for _ in range(count)]
    jobs = [
        collect(served.engine, [n], SEEDED if n % 2 else LONG, f"r{n}", has_begun=begun[n - 1])
        for n in range(1, count + 1)
    ]
    run = asyncio.gather(*map(asyncio.ensure_future, jobs))
    await asyncio.gather(*(event.wait() for event in begun))
    return run


def expected(count: int) -> list[list[int]]:
    return [tokens([n], SEEDED if n % 2 else LONG) for n in range(1, count + 1)]


def kill(served: Served, index: int = 0, number: int = signal.SIGKILL) -> None:
    os.kill(served.engine.engine_pids[f"engine {index}"], number)


def title(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline()).rstrip("\0 ")


def recoveries(logger: RecordingStatLogger) -> list[RecoveryStats]:
    return [each.recovery for each in logger.records if each.recovery is not None]


class TestTakingOver:
    def test_the_one_that_stood_by_goes_on_with_all_streams(self, serve):
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(worker=SLOW, standby_engines=1, observers={"recorder": logger})

        async def main() -> tuple[list[list[int]], list[int], list[int]]:
            (standby,) = await ready(served)
            assert title(standby) == "tenonry: standby 1"
            run = await streams(served, 16)
            kill(served)
            found = await run
            assert served.pid == standby
            return found, [standby], await ready(served)

        found, first, second = served.run(main())
        assert found == expected(16)
        assert first != second
        assert title(served.pid) == "tenonry: engine 0 epoch 3"
        assert title(second[0]) == "tenonry: standby 2"
        assert len(psutil.Process().children()) == 2
        assert list(served.engine.engine_pids) == ["engine 0"]
        served.engine.shutdown()
        seen = recoveries(logger)
        assert sum(each.takeovers for each in seen) == 1
        assert sum(each.restarts for each in seen) == 1
        assert [each.standbys for each in seen if each.standbys is not None] == [1, 0, 1]

    def test_again_and_again_at_any_step(self, serve, tmp_path):
        """The engine kills itself in the step that the file counts down to, but no standby does."""
        fuse = tmp_path / "fuse"
        served = serve(
            worker={
                "name": "tenonry_testkit.kernel.mortal:MortalWorker",
                "options": {"fuse": str(fuse)},
            },
            standby_engines=1,
            max_num_batched_tokens=64,
        )
        budget = served.engine.recovery.owner.restarts.budget
        prompts = [[1, 2], [3], list(range(1, 200))]
        sampling = params(max_tokens=8)
        wanted = [tokens(prompt, sampling) for prompt in prompts]

        async def run(step: int) -> None:
            await ready(served)
            budget.given_up(0)  # it may be killed as often as it takes
            set_fuse(fuse, step)
            jobs = [
                collect(served.engine, prompt, sampling, f"r{number}")
                for number, prompt in enumerate(prompts)
            ]
            assert await asyncio.gather(*jobs) == wanted, step

        for step in range(12):
            served.run(run(step))
            if fuse.exists():
                break
        assert step >= 3

    def test_two_engines_and_one_that_stands_by(self, serve):
        """One is replaced immediately; the other one restarts, or gets the next standby."""
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(
            worker=SLOW, data_parallel_size=2, standby_engines=1, observers={"recorder": logger}
        )

        async def main() -> list[list[int]]:
            (standby,) = await ready(served)
            run = await streams(served, 16)
            kill(served, 0)
            kill(served, 1)
            found = await run
            assert standby in served.engine.engine_pids.values()
            while len(served.engine.engine_core.able) < 2:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)
            await ready(served)
            return found

        assert served.run(main()) == expected(16)
        *engines, last = sorted(served.engine.engines.pids())
        assert engines == ["engine 0", "engine 1"]
        assert served.engine.info.engine_indexes == (0, 1)
        both = [
            collect(served.engine, [rank], LONG, f"p{rank}", data_parallel_rank=rank)
            for rank in (0, 1)
        ]
        assert [served.run(each) for each in both] == [tokens([0], LONG), tokens([1], LONG)]
        served.engine.shutdown()
        taken = sum(each.takeovers for each in recoveries(logger))
        assert taken in {1, 2}
        assert last == f"standby {1 + taken}"  # one more is built for each that took a place

    @pytest.mark.parametrize("rank", [0, 1])
    def test_it_has_the_rank_of_the_one_that_died(self, serve, rank):
        """Requests that are pinned to that rank continue there, and new ones are served."""
        served = serve(worker=SLOW, data_parallel_size=2, standby_engines=1)

        async def main() -> list[list[int]]:
            (standby,) = await ready(served)
            has_begun = asyncio.Event()
            pinned = collect(
                served.engine, [1], LONG, "before", has_begun=has_begun, data_parallel_rank=rank
            )
            run = asyncio.ensure_future(pinned)
            await has_begun.wait()
            kill(served, rank)
            before = await run
            assert served.engine.engine_pids[f"engine {rank}"] == standby
            after = collect(served.engine, [2], LONG, "after", data_parallel_rank=rank)
            return [before, await after]

        assert served.run(main()) == [tokens([1], LONG), tokens([2], LONG)]

    def test_one_that_is_being_built_is_waited_for(self, serve, monkeypatch):
        served = serve(worker=SLOW, standby_engines=1)
        is_dead = asyncio.Event()

        async def waiting(*_: object) -> None:
            await is_dead.wait()

        monkeypatch.setattr(served.engine.events, "on_join", waiting)

        async def main() -> list[list[int]]:
            served.engine.listen()
            while served.engine.recovery.owner.standbys.being_built is None:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            run = await streams(served, 4)
            kill(served)
            while not served.engine.engine_core.awaited:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.1, is_dead.set)
            return await run

        assert served.run(main()) == expected(4)
        assert served.engine.info.engine_indexes == (0,)
        titles = {title(pid) for pid in served.engine.engine_pids.values()}
        assert titles == {"tenonry: engine 0 epoch 3"}

    def test_one_that_ends_as_it_takes_over_is_followed_by_another(self, serve, monkeypatch):
        served = serve(worker=SLOW, standby_engines=2)
        promote = standbys.promote
        promoted: list[int] = []

        def killed(fleet: EngineFleet, standby: int, index: int) -> Any:
            promoted.append(standby)
            if len(promoted) == 1:
                os.kill(fleet.pids()[f"standby {standby - FIRST_STANDBY}"], signal.SIGKILL)
            return promote(fleet, standby, index)

        monkeypatch.setattr(standbys, "promote", killed)

        async def main() -> list[list[int]]:
            await ready(served, 2)
            run = await streams(served, 8)
            kill(served)
            return await run

        assert served.run(main()) == expected(8)
        assert promoted == [FIRST_STANDBY + 1, FIRST_STANDBY + 2]

    def test_one_that_is_stopped_is_left_out(self, serve, monkeypatch):
        """SIGSTOP: it cannot answer, and its state was unknown."""
        monkeypatch.setattr(standbys, "ANSWER_TIMEOUT_S", 0.5)
        monkeypatch.setattr(restarts, "RETRY_S", 0.0)
        served = serve(worker=SLOW, standby_engines=1)

        async def main() -> tuple[list[list[int]], int]:
            (standby,) = await ready(served)
            run = await streams(served, 8)
            os.kill(standby, signal.SIGSTOP)
            kill(served)
            return await run, standby

        found, standby = served.run(main())
        assert found == expected(8)
        assert served.pid != standby
        assert not psutil.pid_exists(standby)

    def test_calls_of_the_new_engine_are_answered(self, serve):
        served = serve(standby_engines=1)

        async def main() -> list[Any]:
            await ready(served)
            kill(served)
            while not served.engine.engine_core.awaited:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            while served.engine.engine_core.awaited:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            await served.engine.check_health()
            return await served.engine.engine_core.call("request_counts")

        assert served.run(main()) == [[0, 0]]


class TestItsOwnEnd:
    def test_no_stream_knows_of_it(self, serve, caplog):
        served = serve(worker=SLOW, standby_engines=1)

        async def main() -> list[list[int]]:
            (first,) = await ready(served)
            run = await streams(served, 8)
            os.kill(first, signal.SIGKILL)
            while await ready(served) == [first]:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)
            return await run

        pid = served.pid
        assert served.run(main()) == expected(8)
        assert served.pid == pid
        assert "standby 1 (pid" in caplog.text
        assert "SIGKILL, before its first step; starting another one" in caplog.text
        assert "restarting engine 0" not in caplog.text

    def test_too_often(self, serve, caplog):
        served = serve(standby_engines=1)

        async def main() -> None:
            killed: set[int] = set()
            for _ in range(4):
                while killed.issuperset(pids := await ready(served)):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.001)
                killed.update(pids)
                os.kill(pids[0], signal.SIGKILL)
            while not served.engine.recovery.owner.standbys.is_given_up:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0.001)

        served.run(main())
        assert "limit exceeded (3 times in 60 s), and standbys are disabled until" in caplog.text
        assert served.run(collect(served.engine, [3], params(), "after")) == tokens([3], params())
        eventually(lambda: len(psutil.Process().children()) == 1)
        served.run(served.engine.replace_engines())
        served.run(ready(served))


class TestBesideOtherOperations:
    def test_it_follows_what_others_do(self, serve):
        served = serve(standby_engines=1)
        client = served.engine.engine_core
        index = FIRST_STANDBY + 1

        async def main() -> list[bool]:
            await ready(served)
            await served.engine.pause_generation(keep=True)
            held = [await client.call_engine(index, "operations.is_held")]
            await served.engine.resume_generation()
            return [*held, await client.call_engine(index, "operations.is_held")]

        assert served.run(main()) == [True, False]
        assert served.run(client.call("operations.is_held")) == [False]  # of those that serve

    def test_one_that_cannot_follow_is_lost(self, serve, caplog, monkeypatch):
        served = serve(standby_engines=1)
        calls = served.engine.engine_calls
        reset = served.engine.engine_core.call

        async def main() -> None:
            pids = await ready(served)
            monkeypatch.setattr(served.engine.engine_core, "call", lambda *_: reset("check_health"))
            await calls.change("adapters.add_lora", "a", "/a")  # no worker of fakes has adapters
            monkeypatch.undo()
            while await ready(served) == pids:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)

        served.run(main())
        assert "it could not follow 'adapters.add_lora'" in caplog.text

    def test_engines_with_new_weights_have_none(self, serve):
        """Theirs are those on disk."""
        served = serve(worker=SLOW, standby_engines=1)

        async def main() -> None:
            await ready(served)
            run = await streams(served, 1)
            served.engine.calls.divergence.add("engines have new weights")
            kill(served)
            with pytest.raises(EngineDeadError, match="not restarted: engines have new"):
                await run

        served.run(main())

    def test_engines_that_replace_others_have_their_own(self, serve):
        served = serve(worker=SLOW, standby_engines=1)

        async def main() -> list[list[int]]:
            (before,) = await ready(served)
            run = await streams(served, 8)
            await served.engine.replace_engines(max_num_seqs=32)
            assert not psutil.pid_exists(before)
            (after,) = await ready(served)
            kill(served)
            found = await run
            while served.engine.engine_pids != {"engine 0": after}:  # noqa: ASYNC110 - after the streams
                await asyncio.sleep(0.001)
            return found

        assert served.run(main()) == expected(8)

    def test_a_fallback_scheduler_is_not_among_those_that_stand_by(self, serve, tmp_path):
        scheduler = tmp_path / "own.py"
        scheduler.write_text(
            "from tenonry_testkit.fakes import ReferenceScheduler\n\nclass Own(ReferenceScheduler):\n"
            "    def schedule(self):\n        raise ValueError('no such row')\n"
        )
        served = serve(
            scheduler=f"{scheduler}:Own",
            fallback_scheduler="tenonry_testkit.fakes:ReferenceScheduler",
            standby_engines=1,
        )

        async def main() -> list[int]:
            await ready(served)
            found = await collect(served.engine, [3], params(), "r")
            await ready(served)
            return found

        assert served.run(main()) == tokens([3], params())
        assert " fallback " in title(served.pid)

    def test_scale_counts_those_that_serve(self, serve):
        served = serve(standby_engines=1)

        async def main() -> None:
            await ready(served)
            await served.engine.scale(2)
            assert sorted(served.engine.engine_pids) == ["engine 0", "engine 1"]
            await served.engine.scale(1)
            assert sorted(served.engine.engines.pids()) == ["engine 0", "standby 1"]

        served.run(main())


class TestEnd:
    def test_a_shutdown_leaves_nothing(self, serve):
        served = serve(standby_engines=2)
        before = set(threading.enumerate())
        served.run(ready(served, 2))
        served.close()
        assert not psutil.Process().children(recursive=True)
        eventually(lambda: set(threading.enumerate()) <= before)

    def test_a_shutdown_while_one_is_built(self, serve, caplog):
        served = serve(standby_engines=1)

        async def main() -> None:
            served.engine.listen()
            while served.engine.recovery.owner.standbys.being_built is None:  # noqa: ASYNC110 - no event says so
                await asyncio.sleep(0)
            await asyncio.to_thread(served.engine.shutdown)

        served.run(main())
        served.runner.close()
        eventually(lambda: not psutil.Process().children(recursive=True))
        assert "could not be started" not in caplog.text


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"engine_death": "stop"}, "engine_death=stop, since no engine restarts"),
        ({"data_parallel_size": 2, "data_parallel_size_local": 1}, "engines on other nodes"),
        ({"kv_connector": "disk"}, "kv_connector=disk"),
    ],
)
def test_what_has_none(values, text):
    config = served_config(standby_engines=2, **values)
    with pytest.raises(ConfigError, match=f"standby_engines=2 is not possible with .*{text}"):
        check_supported(config, fake_model(), ProcessLauncher)


@pytest.mark.parametrize(
    ("gpus", "values", "remedy"),
    [
        ("0", {}, "1 engines and 1 standbys on 1 GPUs put 2 .* --gpu-memory-utilization 0.5, or"),
        ("0,1", {"data_parallel_size": 2}, "2 engines and 1 standbys on 2 GPUs put 2 engines on"),
        ("0", {"standby_engines": 2}, "--gpu-memory-utilization 0.33"),
        ("0,1", {"tensor_parallel_size": 2, "executor": "mp"}, "on 2 GPUs put 2 engines on one"),
    ],
)
def test_a_standby_whose_share_of_a_gpu_is_taken_is_refused(monkeypatch, gpus, values, remedy):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    config = served_config(**{"standby_engines": 1, "device": "cuda", **values})
    with pytest.raises(ConfigError, match=remedy):
        check_supported(config, fake_model(), ProcessLauncher)


@pytest.mark.parametrize(
    ("gpus", "values"),
    [
        ("0,1", {}),
        ("0", {"gpu_memory_utilization": 0.5}),
        ("0", {"kv_cache_memory_bytes": 1 << 30}),
        ("0", {"device": "cpu"}),
        ("", {"device": "auto"}),
        ("0", {"standby_engines": 0}),
    ],
)
def test_a_standby_with_memory_of_its_own_is_not(monkeypatch, gpus, values):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    config = served_config(**{"standby_engines": 1, "device": "cuda", **values})
    check_supported(config, fake_model(), ProcessLauncher)


@pytest.mark.parametrize("name", ["process", "tenonry_testkit.fakes:Any"])
def test_the_launcher_decides_by_its_class(name):
    """For any name: one that cannot rename engines is rejected."""

    class Elsewhere(ProcessLauncher):
        supports_replacement = False

    config = served_config(standby_engines=2, launcher=name)
    check_supported(config, fake_model(), ProcessLauncher)
    with pytest.raises(ConfigError, match=f"launcher={name}; only engines that are processes of"):
        check_supported(config, fake_model(), Elsewhere)


def test_engines_in_lockstep_have_none():
    config = served_config(standby_engines=1)
    with pytest.raises(ConfigError, match="engines that step together"):
        check_supported(config, fake_model(needs_lockstep=True), ProcessLauncher)
    check_supported(served_config(), fake_model(needs_lockstep=True), ProcessLauncher)
