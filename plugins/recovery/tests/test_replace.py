"""Engines that take the place of others under load: no token is lost, repeated or different (AF-27)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from tenonry.errors import (
    ConfigError,
    EngineDeadError,
    EngineGenerateError,
    LaunchError,
    PluginError,
    PluginNotFound,
    Unsupported,
)
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.sampling_params import SamplingParams
from tenonry_recovery import replacement
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
FAULTY = "tenonry_testkit.kernel.faulty:FaultyWorker"
REFERENCE = "tenonry_testkit.fakes:ReferenceScheduler"
OTHER = """
from tenonry_testkit.fakes import ReferenceScheduler

class Other(ReferenceScheduler):
    pass
"""
RAISES = """
from tenonry_testkit.fakes import ReferenceScheduler

class Other(ReferenceScheduler):
    def __init__(self, context):
        raise ValueError("no such queue")
"""
ONCE = """
from pathlib import Path
from tenonry_testkit.fakes import ReferenceScheduler

class Other(ReferenceScheduler):
    def __init__(self, context):
        Path({folder!r}, "built").mkdir()
        super().__init__(context)
"""
LONG = params(max_tokens=150)
SEEDED = params(max_tokens=150, temperature=0.9, seed=3)
HELD = params(max_tokens=200)
HELD_SEEDED = params(max_tokens=200, temperature=0.9, seed=3)


def scheduler(folder: Path, text: str = OTHER) -> str:
    file = folder / "other.py"
    file.write_text(text, "utf-8")
    return f"{file}:Other"


@pytest.fixture
def held(tmp_path: Path) -> Path:
    """A file that holds streams of 200 tokens back until a test removes it, see `holding`."""
    file = tmp_path / "held"
    file.touch()
    return file


def holding(file: Path) -> dict[str, Any]:
    """Setting `worker`: steps are slow while `file` exists, quick from then on."""
    return {"name": FAULTY, "options": {"delay_s": 0.001, "held": str(file)}}


async def streams(
    served: Served, count: int, greedy: SamplingParams = LONG, seeded: SamplingParams = SEEDED
) -> asyncio.Future[list[list[int]]]:
    """All of them have got something; every other one is drawn with a seed."""
    begun = [asyncio.Event() for _ in range(count)]
    jobs = [
        collect(served.engine, [n], seeded if n % 2 else greedy, f"r{n}", has_begun=begun[n - 1])
        for n in range(1, count + 1)
    ]
    run = asyncio.gather(*map(asyncio.ensure_future, jobs))
    await asyncio.gather(*(event.wait() for event in begun))
    return run


def expected(
    count: int, greedy: SamplingParams = LONG, seeded: SamplingParams = SEEDED
) -> list[list[int]]:
    return [tokens([n], seeded if n % 2 else greedy) for n in range(1, count + 1)]


def title(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline()).rstrip("\0 ")


def chosen(served: Served) -> str:
    return next(each.name for each in served.engine.info.plugins if each.kind == "scheduler")


async def refused(served: Served, error: type[Exception], text: str, **changes: Any) -> None:
    before = served.engine.engine_pids
    children = len(psutil.Process().children(recursive=True))
    with pytest.raises(error, match=text):
        await served.engine.replace_engines(**changes)
    assert served.engine.engine_pids == before
    assert len(psutil.Process().children(recursive=True)) == children
    assert not served.engine.engine_core.newcomers


class TestUnderLoad:
    def test_there_and_back_with_64_streams(self, serve, held, tmp_path, caplog):
        caplog.set_level("INFO")
        logger = RecordingStatLogger(StatLoggerContext(served_config()))
        served = serve(max_num_seqs=64, worker=holding(held), observers={"recorder": logger})
        other = scheduler(tmp_path)

        async def main() -> list[list[int]]:
            run = await streams(served, 64, HELD, HELD_SEEDED)
            await served.engine.replace_engines(scheduler=other)
            assert chosen(served) == served.engine.config.scheduler.name == other
            assert title(served.pid) == "tenonry: engine 0 epoch 2"
            assert served.engine.num_unfinished_requests == 64
            await served.engine.replace_engines(scheduler=REFERENCE)
            assert served.engine.num_unfinished_requests == 64
            held.unlink()
            return await run

        assert served.run(main()) == expected(64, HELD, HELD_SEEDED)
        assert chosen(served) == REFERENCE
        assert title(served.pid) == "tenonry: engine 0 epoch 3"
        assert len(psutil.Process().children()) == 1
        found = [each.recovery for each in logger.records if each.recovery is not None]
        assert sum(each.replacements for each in found) == 2
        assert found[0].requests_continued == 64
        assert sum(each.deaths for each in found) == 0
        lines = [text for text in caplog.messages if text.startswith("engines are replaced: ")]
        assert len(lines) == 2
        assert f"scheduler {REFERENCE}" in lines[0]
        assert f"scheduler {other}" in lines[0]

    def test_several_engines_one_after_another(self, serve, tmp_path):
        served = serve(data_parallel_size=2)
        before = served.engine.engine_pids

        async def main() -> list[list[int]]:
            run = await streams(served, 16)
            await served.engine.replace_engines(scheduler=scheduler(tmp_path), max_num_seqs=32)
            return await run

        assert served.run(main()) == expected(16)
        after = served.engine.engine_pids
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
        assert served.engine.admission.capacity == 2 * 32 + 4096
        assert served.run(served.engine.reset_prefix_cache()) is True
        served.run(served.engine.scale(1))
        assert served.run(collect(served.engine, [1], LONG, "r")) == tokens([1], LONG)

    def test_an_engine_that_dies_later_comes_back_with_the_changes(self, serve, tmp_path):
        served = serve()
        other = scheduler(tmp_path)

        async def main() -> list[list[int]]:
            await served.engine.replace_engines(scheduler=other)
            run = await streams(served, 4)
            os.kill(served.pid, signal.SIGKILL)
            return await run

        assert served.run(main()) == expected(4)
        assert chosen(served) == other
        assert title(served.pid) == "tenonry: engine 0 epoch 3"

    def test_adapters_and_calls_reach_it_before_it_takes_over(self, serve, monkeypatch):
        """AF-15."""
        served = serve()
        client = served.engine.engine_core
        seen: list[Any] = []

        async def watched(*_: object) -> None:
            seen.append(sorted(client.newcomers))
            seen.append(await client.call("operations.is_held"))

        monkeypatch.setattr(served.engine.events, "on_join", watched)
        served.run(served.engine.replace_engines())
        assert seen == [[0], [False, False]]
        assert served.run(client.call("operations.is_held")) == [False]

    def test_a_request_with_what_another_engine_gives_once_ends_and_others_go_on(self, serve, held):
        served = serve(worker=holding(held))

        async def main() -> list[list[int]]:
            run = await streams(served, 4)
            pinned = asyncio.ensure_future(
                collect(served.engine, [9], HELD, "r", kv_transfer_params={"from": "there"})
            )
            while len(served.engine.engine_core.engines[0].requests) < 5:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0)
            await served.engine.replace_engines()
            with pytest.raises(EngineDeadError, match="was replaced; its K/V came from another"):
                await pinned
            held.unlink()
            return await run

        assert served.run(main()) == expected(4)


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "error", "text"),
        [
            ({"scheduler": "no-such"}, PluginNotFound, "no scheduler is called 'no-such'"),
            ({"scheduler": "msgspec:Mine"}, PluginError, "has no 'Mine'"),
            ({"model": "other"}, ConfigError, "model cannot change .* start another server"),
            ({"dtype": "float16"}, ConfigError, "dtype cannot change"),
            ({"data_parallel_size": 2}, ConfigError, "use AsyncLLM.scale or POST /scale"),
            ({"max_num_seqs": 0}, ConfigError, "max_num_seqs=0: .*greater than or equal to 1"),
            ({"schedule": "x"}, ConfigError, "unknown setting 'schedule'; did you mean"),
            ({"num_gpu_blocks_override": 1}, (ConfigError, LaunchError), "blocks|max_model_len"),
        ],
    )
    def test_what_cannot_be_changed(self, serve, changes, error, text):
        served = serve()

        async def main() -> list[list[int]]:
            run = await streams(served, 4)
            await refused(served, error, text, **changes)
            return await run

        assert served.run(main()) == expected(4)

    def test_a_scheduler_that_raises_at_start(self, serve, tmp_path):
        served = serve()
        broken = scheduler(tmp_path, RAISES)

        async def main() -> list[list[int]]:
            run = await streams(served, 16)
            await refused(served, LaunchError, "no such queue", scheduler=broken)
            await refused(served, LaunchError, "no such queue", scheduler=broken)
            return await run

        assert served.run(main()) == expected(16)
        assert chosen(served) == REFERENCE
        assert title(served.pid) == "tenonry: engine 0"

    def test_the_first_of_two_goes_back_when_the_second_cannot(self, serve, tmp_path):
        served = serve(data_parallel_size=2)
        once = scheduler(tmp_path, ONCE.format(folder=str(tmp_path)))

        async def main() -> list[list[int]]:
            run = await streams(served, 16)
            with pytest.raises(LaunchError, match="engine 1 could not start"):
                await served.engine.replace_engines(scheduler=once)
            assert served.engine.config.scheduler.name == REFERENCE
            return await run

        assert served.run(main()) == expected(16)
        assert title(served.pid) == "tenonry: engine 0 epoch 4"
        assert title(served.engine.engine_pids["engine 1"]) == "tenonry: engine 1"
        assert len(psutil.Process().children()) == 2
        assert len(served.engine.engines.fleets) == 1

    def test_engines_that_differ_from_new_ones(self, serve):
        served = serve()
        served.run(served.engine.pause_generation(keep=True))
        served.run(refused(served, Unsupported, "engines are held, and ones"))
        served.run(served.engine.resume_generation())
        served.run(served.engine.replace_engines())

    def test_adapters_that_the_new_one_cannot_load(self, serve):
        served = serve()
        served.engine.calls["adapters"]._paths["gone"] = "/gone"  # as if loaded; this worker cannot
        text = "does not support 'add_lora'"
        served.run(refused(served, EngineGenerateError, text))


class TestDeaths:
    def test_the_old_one_dies_while_the_new_one_starts(self, serve, tmp_path, monkeypatch):
        served = serve()
        joining = replacement.joining

        def killed(*arguments: Any) -> Any:
            os.kill(served.pid, signal.SIGKILL)
            return joining(*arguments)

        monkeypatch.setattr(replacement, "joining", killed)

        async def main() -> list[list[int]]:
            run = await streams(served, 8)
            await served.engine.replace_engines(scheduler=scheduler(tmp_path))
            return await run

        assert served.run(main()) == expected(8)
        assert title(served.pid) == "tenonry: engine 0 epoch 2"
        assert len(psutil.Process().children()) == 1

    def test_the_new_one_dies_before_it_takes_over(self, serve, monkeypatch):
        served = serve()
        engines = served.engine.engines

        async def killed(*_: object) -> None:
            fleet = engines.fleets[1]
            os.kill(fleet.pids()["engine 0"], signal.SIGKILL)
            while not fleet.dead:  # noqa: ASYNC110 - a thread learns of it
                await asyncio.sleep(0.001)

        monkeypatch.setattr(served.engine.events, "on_join", killed)

        async def main() -> list[list[int]]:
            run = await streams(served, 8)
            before = served.pid
            with pytest.raises(LaunchError, match=r"it ended before it was used: .*SIGKILL"):
                await served.engine.replace_engines()
            assert served.pid == before
            return await run

        assert served.run(main()) == expected(8)
        assert len(psutil.Process().children()) == 1

    def test_a_shutdown_meanwhile_leaves_nothing(self, serve):
        served = serve()
        before = set(threading.enumerate())

        async def main() -> None:
            job = asyncio.ensure_future(served.engine.replace_engines())
            while len(served.engine.engines.fleets) == 1:  # noqa: ASYNC110 - no event reports it
                await asyncio.sleep(0.001)
            await asyncio.to_thread(served.engine.shutdown)
            with pytest.raises((LaunchError, EngineDeadError), match="shut down"):
                await job

        served.run(main())
        assert not psutil.Process().children(recursive=True)
        served.runner.close()
        eventually(lambda: set(threading.enumerate()) <= before)


def test_engines_that_come_later_learn_how_many_they_are_then(serve):
    """Started again after a death, in place of another one, and after a change of their number that failed."""
    served = serve(data_parallel_size=3)
    engine = served.engine

    async def sizes() -> list[int]:
        while len(engine.engine_core.able) < len(engine.info.engine_indexes):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.001)
        found: list[int] = await engine.collective_rpc("data_parallel_size")
        return found

    def restart() -> None:
        os.kill(engine.engine_pids["engine 0"], signal.SIGKILL)
        eventually(lambda: not engine.engine_core.able or 0 not in engine.engine_core.able)

    async def main() -> None:
        assert await sizes() == [3, 3, 3]
        await engine.scale(1)
        restart()
        assert await sizes() == [1]
        await engine.scale(2)
        assert await sizes() == [1, 2]
        await engine.replace_engines(max_num_seqs=32)
        assert await sizes() == [2, 2]
        with pytest.raises(ConfigError):
            await engine.scale(0)
        restart()
        assert await sizes() == [2, 2]

    served.run(main())
