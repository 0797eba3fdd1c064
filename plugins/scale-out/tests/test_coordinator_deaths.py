"""The end of a coordinator: while it starts, or later, when independent engines serve, join and come back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import signal

import pytest

from tenonry.client.engines import OwnedEngines
from tenonry.errors import LaunchError
from tenonry.launch.fleet import EngineFleet
from tenonry.launch.supervise import Supervisor
from tenonry.plugin.manager import PluginManager
from tenonry_scale_out.companion import start_coordinator
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.roles import eventually
from tenonry_testkit.served import collect, params, tokens

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("forked_children")]
LONG = params(max_tokens=200)


@pytest.mark.parametrize(
    ("role", "timeout"),
    [("builtins:len", 20.0), ("tenonry_testkit.roles:sleep", 0.2)],
    ids=["ends", "hangs"],
)
def test_a_coordinator_that_does_not_answer_ends_the_start(role, timeout, tmp_path):
    """One that ends is not waited for."""
    supervisor = Supervisor()
    payload = {"file": str(tmp_path / "begun")}
    folder = str(tmp_path / "none")
    try:
        with pytest.raises(LaunchError, match="did not start"):
            start_coordinator(supervisor, payload, removes=folder, timeout=timeout, role=role)
    finally:
        supervisor.stop()


def test_engines_join_also_after_the_end_of_the_coordinator():
    """The engines that run serve without it."""
    config, manager = fake_config(), PluginManager(discover=False)
    manager.register(FakeModelHooks())
    model, plan = manager.resolve_model(config), manager.plan(config)
    made = EngineFleet(config, model, plan, print, itertools.count(1), coordinated=True)
    with contextlib.ExitStack() as ends:
        ends.callback(made.shutdown)
        made.start([0], [])
        os.kill(made.pids()["coordinator"], signal.SIGKILL)
        eventually(lambda: made.coordinator is None)
        made.start([1], [])
        assert sorted(made.pids()) == ["engine 0", "engine 1"]


def test_a_coordinator_that_dies_after_all_engines_keeps_none_from_coming_back(serve, monkeypatch):
    """As several front ends have one."""
    coordinated = functools.partialmethod(OwnedEngines.__init__, coordinated=True)
    monkeypatch.setattr(OwnedEngines, "__init__", coordinated)
    served = serve(data_parallel_size=2, engine_recovery="resume")

    async def main() -> list[list[int]]:
        begun = [asyncio.Event() for _ in range(2)]
        jobs = [
            asyncio.ensure_future(
                collect(served.engine, [n + 1], LONG, f"r{n}", has_begun=begun[n])
            )
            for n in range(2)
        ]
        await asyncio.gather(*(event.wait() for event in begun))
        fleet = served.engine.engines.fleet
        coordinator = fleet.pids()["coordinator"]
        for index in range(2):
            os.kill(served.engine.engine_pids[f"engine {index}"], signal.SIGKILL)
        while fleet.engines:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.0005)
        os.kill(coordinator, signal.SIGKILL)
        return await asyncio.gather(*jobs)

    assert served.run(main()) == [tokens([1], LONG), tokens([2], LONG)]
