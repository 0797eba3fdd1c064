"""`--fallback-scheduler`: takes over from a scheduler that raised or violated its contract twice (AF-26)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tenonry.errors import EngineDeadError, PluginNotFound
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry_testkit.fakes import RecordingStatLogger
from tenonry_testkit.kernel.served import Served, served_config
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
REFERENCE = "tenonry_testkit.fakes:ReferenceScheduler"
RAISES = """
from tenonry_testkit.fakes import ReferenceScheduler

class Broken(ReferenceScheduler):
    def schedule(self):
        output = super().schedule()
        if output.step_id > 9:
            raise ValueError("no idea what runs next")
        return output
"""
OVERRUNS = """
from tenonry_testkit.fakes import ReferenceScheduler

class Broken(ReferenceScheduler):
    def schedule(self):
        output = super().schedule()
        if output.step_id > 9 and len(output.num_tokens):
            output.num_tokens[0] += 100000
        return output
"""
LONG = params(max_tokens=60)


def broken(folder: Path, text: str) -> str:
    file = folder / "broken.py"
    file.write_text(text, "utf-8")
    return f"{file}:Broken"


async def all_of(served: Served, count: int = 4) -> list[list[int]]:
    return await asyncio.gather(
        *(collect(served.engine, [number], LONG, f"r{number}") for number in range(1, count + 1))
    )


@pytest.mark.parametrize("text", [RAISES, OVERRUNS], ids=["raises", "breaks its contract"])
def test_it_takes_over_after_two_faults_and_streams_go_on(text, serve, tmp_path, caplog):
    logger = RecordingStatLogger(StatLoggerContext(served_config()))
    scheduler = broken(tmp_path, text)
    served = serve(
        scheduler=scheduler, fallback_scheduler=REFERENCE, observers={"recorder": logger}
    )
    assert served.run(all_of(served)) == [tokens([number], LONG) for number in range(1, 5)]
    assert caplog.text.count("raised or violated its contract 2 times") == 1
    chosen = {each.kind: each.name for each in served.engine.info.plugins}
    assert chosen["scheduler"] == REFERENCE
    assert "executor" in chosen
    found = [each.recovery for each in logger.records if each.recovery is not None]
    assert sum(each.fallbacks for each in found) == 1
    assert sum(each.deaths for each in found) == 2
    title = " ".join(psutil.Process(served.pid).cmdline()).rstrip("\0 ")
    assert title == f"tenonry: engine 0 epoch 3 fallback scheduler {REFERENCE}"
    os.kill(served.pid, signal.SIGKILL)  # it stays
    assert served.run(collect(served.engine, [9], LONG, "after")) == tokens([9], LONG)
    assert caplog.text.count("raised or violated its contract 2 times") == 1


def test_deaths_that_no_scheduler_caused_change_nothing(serve, caplog):
    served = serve(fallback_scheduler=REFERENCE)
    for number in range(2):
        os.kill(served.pid, signal.SIGKILL)
        got = served.run(collect(served.engine, [number], LONG, f"r{number}"))
        assert got == tokens([number], LONG)
    assert "violated its contract" not in caplog.text


def test_without_one_the_engine_is_given_up(serve, tmp_path):
    served = serve(scheduler=broken(tmp_path, RAISES))
    with pytest.raises(EngineDeadError, match="no idea what runs next"):
        served.run(until_dead(served))


async def until_dead(served: Served) -> None:
    for number in range(4):
        await all_of(served, number + 2)


def test_one_that_is_not_there_ends_the_start(serve):
    with pytest.raises(PluginNotFound, match="no-such-scheduler"):
        serve(fallback_scheduler="no-such-scheduler")
