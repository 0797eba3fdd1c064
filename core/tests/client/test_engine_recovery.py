"""A third party's engine recovery, and the kernel's own, which ends the streams of a dead engine."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from tenonry.errors import EngineDeadError, PluginNotFound, Unsupported
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry_testkit.kernel.served import Served
from tenonry_testkit.plugins import TmpPlugins
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
LONG = params(max_tokens=100)
SLOW = {"name": "tenonry_testkit.kernel.faulty:FaultyWorker", "options": {"delay_s": 0.01}}
LOGS = """
    import logging

    from tenonry.interfaces.recovery import EngineRecovery

    class LogRecovery(EngineRecovery):
        def on_death(self, index, death, requests):
            ids = sorted(request.request_id for request in requests.values())
            logging.getLogger("acme").error("engine %d: %d, %s", index, death.exit_code, ids)

    class WrongRecovery(EngineRecovery):
        def on_death(self, index, death, requests):
            return len(requests)

    class BrokenRecovery(EngineRecovery):
        def on_death(self, index, death, requests):
            raise ValueError("no pager")
"""


@pytest.fixture
def acme(fake_model_site: TmpPlugins, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution of somebody else, on an alpha point."""
    monkeypatch.setenv(EXPERIMENTAL, "1")
    names = {"log": "LogRecovery", "broken": "BrokenRecovery", "wrong": "WrongRecovery"}
    fake_model_site.distribution(
        "acme-recovery",
        entry_points={
            "tenonry.engine_recoveries": {
                name: f"acme_recovery:{class_name}" for name, class_name in names.items()
            }
        },
        modules={"acme_recovery": LOGS},
    )


async def streams_of_a_killed_engine(served: Served) -> list[Any]:
    """What four streams got, of which engine 1 runs every other one."""
    begun = [asyncio.Event() for _ in range(4)]
    jobs = [
        collect(served.engine, [n], LONG, f"r{n}", has_begun=begun[n], data_parallel_rank=n % 2)
        for n in range(4)
    ]
    run = asyncio.gather(*map(asyncio.ensure_future, jobs), return_exceptions=True)
    await asyncio.gather(*(each.wait() for each in begun))
    os.kill(served.engine.engine_pids["engine 1"], signal.SIGKILL)
    return await run


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("log", "engine 1: -9, ['r1', 'r3']"),
        ("broken", "the engine recovery failed"),
        ("wrong", "the engine recovery failed"),
    ],
)
def test_one_of_a_third_party_sees_the_death_and_streams_end(serve, caplog, name, line):
    served = serve(worker=SLOW, data_parallel_size=2, engine_recovery=name)
    first, second, third, fourth = served.run(streams_of_a_killed_engine(served))
    assert [first, third] == [tokens([n], LONG) for n in (0, 2)]
    for error in (second, fourth):
        assert isinstance(error, EngineDeadError)
        assert "SIGKILL" in str(error)
    assert line in caplog.text
    assert list(served.engine.engine_pids) == ["engine 0"]


@pytest.mark.usefixtures("acme")
def test_it_sees_the_death_of_the_last_engine(serve, caplog):
    served = serve(worker=SLOW, engine_recovery="log")

    async def main() -> None:
        stream = await served.begin("only")
        os.kill(served.pid, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="SIGKILL"):
            async for _ in stream:
                pass

    served.run(main())
    eventually(lambda: served.engine.errored)
    assert "engine 0: -9, ['only']" in caplog.text


@pytest.mark.usefixtures("acme")
def test_engines_are_replaced_by_a_recovery_that_can(serve):
    served = serve(engine_recovery="log")
    with pytest.raises(Unsupported, match="pip install tenonry-recovery"):
        served.run(served.engine.replace_engines(max_num_seqs=2))
    assert served.run(collect(served.engine, [1], params(), "r")) == tokens([1], params())


def test_a_missing_one_is_named(serve):
    with pytest.raises(PluginNotFound, match="'pager'"):
        serve(engine_recovery="pager")
