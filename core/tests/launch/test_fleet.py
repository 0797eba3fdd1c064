"""Checks and assignments by the owner of several engines; their lives are in `client/test_data_parallel.py` (EC-5,
HS-16, PM-6, PM-7).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from typing import Any

import pytest

from tenonry.errors import ConfigError, LaunchError, PluginNotFound
from tenonry.interfaces.launcher import Death
from tenonry.launch.fleet import EngineFleet
from tenonry.launch.handshake import check_alike
from tenonry.messages import EngineFacts
from tenonry.plugin import discovery
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.fakes.model import FakeModelHooks
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.roles import eventually

PROCESS = "tenonry.launch.process:ProcessLauncher"
FleetOf = Callable[..., EngineFleet]


@pytest.fixture
def fleet() -> Iterator[FleetOf]:
    """Owners of engines of fakes; nothing is started yet."""
    with contextlib.ExitStack() as ends:

        def make(
            on_death: Any = print, *, coordinated: bool = False, facts: Any = None, **values: Any
        ) -> EngineFleet:
            config, manager = fake_config(**values), PluginManager(discover=False)
            manager.register(FakeModelHooks(**(facts or {})))
            plan = manager.plan(config, launcher=True)
            made = EngineFleet(
                config,
                manager.resolve_model(config),
                plan,
                on_death,
                itertools.count(1),
                coordinated=coordinated,
            )
            ends.callback(made.shutdown)
            return made

        yield make


@pytest.mark.parametrize(
    ("rank", "ranks"), [(None, [0, 1]), (1, [0, 0])], ids=["all here", "one per server"]
)
def test_each_engine_has_a_rank_of_its_own(fleet, rank, ranks):
    """PM-6: its launcher chooses its devices by it."""
    made = fleet(data_parallel_size=2, data_parallel_rank=rank)
    assert [made.place(index) for index in (0, 1)] == ranks


@pytest.mark.integration
def test_one_that_cannot_start_takes_the_others_of_its_round_along(fleet):
    """PM-7."""
    made = fleet(data_parallel_size=2, worker="tenonry_testkit.kernel.faulty:FirstEngineWorker")
    with pytest.raises(LaunchError, match=r"engine 1 could not start: no weights for this one"):
        made.start([0, 1], [])
    assert made.pids() == {}
    assert made.engines == {}


def facts(index: int, **values: int) -> EngineFacts:
    return EngineFacts(
        **{
            "index": index,
            "epoch": 1,
            "num_gpu_blocks": 10,
            "block_size": 16,
            "max_model_len": 64,
            **values,
        }
    )


@pytest.mark.integration
def test_engines_that_differ_are_stopped_again(fleet):
    """EC-5: see `check_alike`."""
    made = fleet(
        data_parallel_size=2, worker="tenonry_testkit.kernel.faulty:UnlikeWorker", max_model_len=32
    )
    with pytest.raises(
        ConfigError,
        match="engine 0 has block_size 16, engine 1 has 32; give --block-size 16 to all",
    ):
        made.start([0, 1], [])
    assert made.pids() == {}


@pytest.mark.integration
def test_one_that_ends_as_soon_as_it_is_ready_is_missed(fleet, monkeypatch):
    """It ended before it was counted as an engine."""
    heard: list[tuple[int, str]] = []
    made = fleet(lambda *news: heard.append(news), data_parallel_size=2)

    def too_late(_: Any) -> None:
        os.kill(made.pids()["engine 1"], signal.SIGKILL)
        eventually(lambda: made.finished() == {"engine 1": -signal.SIGKILL})

    monkeypatch.setattr("tenonry.launch.fleet.check_alike", too_late)
    made.start([0, 1], [])
    assert [index for index, _ in heard] == [1]
    assert "SIGKILL" in made.dead[1].reason
    assert not made.dead[1].began_step
    assert list(made.engines) == [0]


def test_a_death_is_that_of_the_engine_with_its_epoch(fleet):
    """Else the death of an engine that was replaced would be that of the next one with its index."""
    heard: list[tuple[int, Death]] = []
    made = fleet(lambda *news: heard.append(news))
    made.engines = {0: facts(0, epoch=2)}
    made.lost(0, Death("the one before", epoch=1))
    assert (heard, list(made.engines)) == ([], [0])
    made.lost(0, Death("whichever it is"))
    assert (heard, made.engines) == ([(0, Death("whichever it is", epoch=2))], {})


@pytest.fixture
def _alone(site, monkeypatch):
    """The kernel alone names anything; `site` makes what was found before count no more."""
    own = distribution("tenonry").entry_points
    monkeypatch.setattr(discovery, "_entry_points", lambda: own)


@pytest.mark.usefixtures("_alone")
class TestWithoutScaleOut:
    """Settings that need several engines name the command that installs scale-out; one engine needs none of it."""

    @pytest.mark.parametrize(
        "values",
        [
            {"data_parallel_size": 2, "load_balancer": "affinity"},
            {"coordinated": True},
            {"facts": {"needs_lockstep": True}, "data_parallel_size": 2},
            {"data_parallel_size": 2, "data_parallel_size_local": 1},
        ],
        ids=["load balancer", "front ends", "lockstep", "nodes"],
    )
    def test_the_command_is_named(self, fleet, values):
        with pytest.raises(PluginNotFound, match="pip install tenonry-scale-out"):
            fleet(launcher=PROCESS, **values)

    @pytest.mark.integration
    def test_one_engine_starts(self, fleet):
        made = fleet(launcher=PROCESS, load_balancer="affinity")
        made.start([0], [])
        assert list(made.engines) == [0]


def test_engines_may_have_different_numbers_of_blocks():
    check_alike([facts(0), facts(1, num_gpu_blocks=7)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"block_size": 32},
            "engine 0 has block_size 16, engine 2 has 32; give --block-size 16 to all",
        ),
        (
            {"max_model_len": 48},
            "engine 0 has max_model_len 64, engine 2 has 48; give --max-model-len 48 to all",
        ),
    ],
)
def test_a_request_must_fit_any(values, message):
    with pytest.raises(ConfigError, match=message):
        check_alike([facts(0), facts(1), facts(2, **values)])
