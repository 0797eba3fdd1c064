"""The front end's sockets to its engines hold no more open files than the existing engines need (AF-24)."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Awaitable
from pathlib import Path

import psutil
import pytest

from tenonry.errors import LaunchError
from tenonry_recovery import standbys
from tenonry_testkit.kernel.served import Served
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children", "no_limit")]
LONG = params(max_tokens=40)
TIMES = 5
RESTARTS = {"name": "resume", "options": {"max_restarts": 1000}}
BROKEN = """
from tenonry_testkit.fakes import ReferenceScheduler

class Broken(ReferenceScheduler):
    def __init__(self, context):
        raise ValueError("no such queue")
"""


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standbys without delay."""
    monkeypatch.setattr(standbys, "DELAY_S", 0.0)
    monkeypatch.setattr(standbys, "POLL_S", 0.01)


def num_files() -> int:
    return psutil.Process().num_fds()


def run_directories() -> list[str]:
    """Existing run directories of this process."""
    folder = Path(tempfile.gettempdir())
    return [path.name for path in folder.glob(f"tenonry-{os.getpid()}-*")]


async def killed_under_load(served: Served, index: int) -> None:
    """Kill an engine that runs streams; return when they have ended and it takes requests again."""
    begun = [asyncio.Event() for _ in range(4)]
    jobs = [
        collect(served.engine, [number], LONG, f"r{number}", has_begun=event)
        for number, event in enumerate(begun)
    ]
    run = asyncio.gather(*map(asyncio.ensure_future, jobs))
    await asyncio.gather(*(event.wait() for event in begun))
    os.kill(served.engine.engine_pids[f"engine {index}"], signal.SIGKILL)
    assert await run == [tokens([number], LONG) for number in range(4)]
    while index not in served.engine.engine_core.able:  # noqa: ASYNC110 - no event reports it
        await asyncio.sleep(0.001)


async def standby_is_ready(served: Served) -> None:
    served.engine.listen()
    while not served.engine.recovery.owner.standbys.ready:  # noqa: ASYNC110 - no event says so
        await asyncio.sleep(0.001)


async def settled(work: Awaitable[None], wanted: int) -> None:
    """Wait for the work, and until `wanted` files are open, once closed sockets are gone."""
    await work
    for _ in range(500):
        if num_files() == wanted:
            return
        await asyncio.sleep(0.01)
    assert num_files() == wanted


class TestFiles:
    def test_restarts_leave_none_open(self, serve):
        served = serve(engine_recovery=RESTARTS)

        async def main() -> None:
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for _ in range(TIMES):
                await settled(killed_under_load(served, 0), before)

        served.run(main())
        assert run_directories() == []

    def test_nor_do_engines_that_stood_by(self, serve):
        served = serve(standby_engines=1, engine_recovery=RESTARTS)

        async def once() -> None:
            await killed_under_load(served, 0)
            await standby_is_ready(served)

        async def main() -> None:
            await standby_is_ready(served)
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for _ in range(TIMES):
                await settled(once(), before)

        served.run(main())
        assert run_directories() == []

    def test_nor_do_engines_that_replaced_others(self, serve):
        served = serve(engine_recovery=RESTARTS)

        async def main() -> None:
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for number in range(1, TIMES):
                await settled(served.engine.replace_engines(max_num_seqs=number), before)
            await settled(killed_under_load(served, 0), before)

        served.run(main())

    def test_engines_that_started_together_share_two_until_each_was_started_anew(self, serve):
        served = serve(data_parallel_size=2, engine_recovery=RESTARTS)

        async def main() -> None:
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for index in (0, 0, 0, 1, 1, 0):
                await settled(killed_under_load(served, index), before + 2)

        served.run(main())

    def test_starts_that_fail_leave_no_more_than_the_last_one_did(self, serve, tmp_path):
        served = serve(engine_recovery=RESTARTS)
        broken = tmp_path / "broken.py"
        broken.write_text(BROKEN, "utf-8")

        async def fails() -> None:
            with pytest.raises(LaunchError, match="no such queue"):
                await served.engine.replace_engines(scheduler=f"{broken}:Broken")

        async def main() -> None:
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for _ in range(TIMES):
                await settled(fails(), before + 2)
            await settled(killed_under_load(served, 0), before)

        served.run(main())

    def test_scaling_up_and_down_leaves_none_open(self, serve):
        served = serve(engine_recovery=RESTARTS)

        async def main() -> None:
            await collect(served.engine, [1], LONG, "first")
            before = num_files()
            for _ in range(3):
                await served.engine.scale(2)
                await settled(served.engine.scale(1), before)

        served.run(main())
