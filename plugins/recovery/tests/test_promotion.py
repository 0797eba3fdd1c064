"""A standby gets the index, the name and the GPUs of an engine that died."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tenonry.errors import LaunchError
from tenonry.interfaces.launcher import FIRST_STANDBY
from tenonry.launch import fleet as fleets
from tenonry.launch.fleet import EngineFleet
from tenonry.messages import EngineFacts
from tenonry.plugin.manager import PluginManager
from tenonry_recovery.standbys import promote
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import fake_config


@pytest.fixture
def fleet() -> Iterator[EngineFleet]:
    """Two engines of fakes, which are not started."""
    config, manager = fake_config(data_parallel_size=2), PluginManager(discover=False)
    manager.register(FakeModelHooks())
    plan = manager.plan(config, launcher=True)
    made = EngineFleet(config, manager.resolve_model(config), plan, print, itertools.count(1))
    yield made
    made.shutdown()


def facts(index: int) -> EngineFacts:
    return EngineFacts(index=index, epoch=1, num_gpu_blocks=8, block_size=4, max_model_len=32)


def test_a_standby_takes_its_gpus_along(fleet, monkeypatch):
    """It has GPUs of its own if there are any; the next one to start gets those of the dead one."""
    monkeypatch.setattr(fleets, "num_places", lambda config: 3)
    standby = FIRST_STANDBY + 1
    assert [fleet.place(index) for index in (0, 1, standby, standby + 1)] == [0, 1, 2, 0]
    fleet.engines = {1: facts(1), standby: facts(standby)}
    fleet.stop([0, standby + 1])
    found = promote(fleet, standby, 0)
    assert (found.index, found.epoch) == (0, 1)
    assert fleet.engines == {0: found, 1: facts(1)}
    assert fleet.place(standby + 2) == 0
    fleet.stop([0])
    assert fleet.place(0) == 2


def test_a_standby_that_ended_is_not_promoted(fleet):
    with pytest.raises(LaunchError, match="standby 1 has just ended"):
        promote(fleet, FIRST_STANDBY + 1, 0)
