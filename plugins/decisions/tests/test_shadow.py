"""A shadow sees the live requests, decides on its own, and cannot touch the live scheduler."""

from __future__ import annotations

import logging

import pytest
from decision_runs import answer_all

from tenonry.errors import ConfigError, PluginError
from tenonry.interfaces.plugin import PluginContext
from tenonry_decisions.calls import DecisionCalls
from tenonry_decisions.recording import recordings
from tenonry_scheduler_static import StaticScheduler
from tenonry_testkit.kernel.engine import make_core

BATCHING = "tenonry_scheduler_batching.scheduler:BatchingScheduler"


class OneByOne(StaticScheduler):
    """Runs one request at a time."""

    def choose(self, step):
        step.run_ready()
        for request in step.waiting:
            if step.num_running:
                break
            step.run(request)


class Failing(OneByOne):
    """Fails in its third step."""

    def choose(self, step):
        if self.rows.step == 3:
            raise ZeroDivisionError("on purpose")
        super().choose(step)


class Unbuilt(OneByOne):
    """Cannot be built."""

    def __init__(self, context):
        raise ZeroDivisionError("on purpose")


def played(**settings):
    """Requests on an engine: its answers, and the live and shadow records."""
    core = make_core(decision_steps=1000, **settings)
    half = DecisionCalls(PluginContext(core.config)).engine_half(core)
    tokens = answer_all(core)
    data = half.decision_records()
    core.shutdown()
    return tokens, recordings([data]), recordings([data], "shadow")


def test_the_candidate_decides_on_its_own():
    alone, [live], none = played()
    tokens, [beside], [shadow] = played(shadow_scheduler=f"{__name__}:OneByOne")
    assert none == []
    assert tokens == alone
    assert [track.stays for track in beside.tracks] == [track.stays for track in live.tracks]
    assert [track.label for track in shadow.tracks] == [track.label for track in live.tracks]
    assert live.used_rows.max() > 1
    assert shadow.used_rows.max() == 1
    assert all(track.end is not None for track in shadow.tracks)
    assert shadow.header.scheduler == f"{__name__}:OneByOne"


def test_the_same_scheduler_as_its_own_shadow_decides_alike():
    _, [live], [shadow] = played(scheduler=BATCHING, shadow_policy="fcfs")
    assert [track.stays for track in shadow.tracks] == [track.stays for track in live.tracks]
    assert shadow.header.policy == "fcfs"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("Failing", "scheduled raised ZeroDivisionError: on purpose"),
        ("Unbuilt", "disabled the shadow scheduler: plugin"),
    ],
)
def test_a_fault_of_the_candidate_ends_the_shadow_alone(name, error, caplog):
    alone, [live], _ = played()
    with caplog.at_level(logging.ERROR, "tenonry.decisions"):
        tokens, [beside], _ = played(shadow_scheduler=f"{__name__}:{name}")
    assert tokens == alone
    assert [track.stays for track in beside.tracks] == [track.stays for track in live.tracks]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert error in lines[0], lines
    assert name in lines[0]


@pytest.mark.parametrize(
    ("settings", "kind", "error"),
    [
        ({"shadow_scheduler": "statik", "decision_steps": 1}, PluginError, "did you mean 'static'"),
        ({"shadow_scheduler": "static"}, ConfigError, "need a record: add --decision-log FILE or"),
    ],
)
def test_a_shadow_that_cannot_work_is_refused_at_the_start(settings, kind, error):
    with pytest.raises(kind, match=error):
        make_core(**settings)
