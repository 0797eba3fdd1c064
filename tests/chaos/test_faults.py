"""Faults of all kinds while streams of all kinds run: every stream continues, token for token; nothing is left (AF-24).

`--testkit-effort 20` draws twenty times as many, at random.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import NamedTuple

import pytest
from disturbed import Disturbed
from hypothesis import strategies as st

from tenonry_testkit.search import search

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
EXAMPLES = 3
WORKING = ("schedule", "execute", "update", "send")
WHILE_RUNNING = [f"engine.{when}_{verb}" for when in ("before", "after") for verb in WORKING]
WHILE_RUNNING += ["worker.before_execute", "worker.after_execute"]
ARRIVING = ["engine.before_receive", "engine.after_receive"]
IN_ENGINE = ["kill", "raise:KeyError", "exit:3"]
BEING_BUILT = ("hello", "start", "ready")
STARTING = [f"engine.{when}_{verb}" for when in ("before", "after") for verb in BEING_BUILT]
STARTING += ["worker.before_load", "worker.after_load"]
# By then requests may run again, and with a third crash one of them would be taken for its cause.
STARTING.remove("engine.after_ready")
LAUNCHING = ["fleet.before_start=raise@2", "fleet.after_start=raise@2"]


class Strike(NamedTuple):
    """A signal to the engine once `tokens` tokens were received."""

    tokens: int
    number: int


class Plan(NamedTuple):
    """Faults at failpoints, and perhaps one from outside. `later`: where the engine is being started again."""

    first: str
    second: str
    later: str
    strike: Strike | None

    @property
    def faults(self) -> str:
        return ";".join(text for text in (self.first, self.second, self.later) if text)


def at(names: list[str], actions: list[str], hits: st.SearchStrategy[int]) -> st.SearchStrategy[str]:  # fmt: skip
    parts = st.tuples(st.sampled_from(names), st.sampled_from(actions), hits)
    return parts.map(lambda part: f"{part[0]}={part[1]}@{part[2]}")


RUNNING = at(WHILE_RUNNING, IN_ENGINE, st.integers(1, 20)) | at(
    ARRIVING, IN_ENGINE, st.integers(1, 9)
)
RECOVERING = at(STARTING, IN_ENGINE, st.just(2)) | st.sampled_from(LAUNCHING)
SLOW = st.sampled_from(["client.after_receive=sleep:0.002", "engine.before_send=sleep:0.002"])
STRIKES = st.builds(Strike, st.integers(1, 150), st.sampled_from([signal.SIGKILL, signal.SIGSTOP]))
PLANS = st.one_of(
    st.builds(Plan, RUNNING, st.just(""), st.just("") | RECOVERING, st.none()),
    st.builds(Plan, RUNNING, RUNNING, st.just("") | RECOVERING | SLOW, st.none()),
    st.builds(Plan, st.just(""), RUNNING | SLOW, st.just("") | RECOVERING, STRIKES),
)


def striker(disturbed: Disturbed, strike: Strike | None) -> Callable[[int], None]:
    """Called with the number of received tokens: strikes once, an engine that runs or starts."""
    due = [strike] if strike else []

    def on_tokens(tokens: int) -> None:
        if due and tokens >= due[0].tokens:
            pids = disturbed.server.pids()
            engines = [pid for title, pid in pids.items() if title.startswith("engine")]
            for pid in engines[:1]:
                os.kill(pid, due.pop().number)

    return on_tokens


def test_faults_while_streams_run(serve, expected):
    def check(plan: Plan) -> None:
        disturbed = serve(plan.faults, "--step-timeout", "1")
        disturbed.check(expected, disturbed.run(striker(disturbed, plan.strike)))
        if plan.first:
            assert disturbed.times(0) >= int(plan.first.rpartition("@")[2])

    search(PLANS, check, EXAMPLES)


@pytest.mark.parametrize(
    ("faults", "flags"),
    [
        ("worker.before_execute[worker 0.1]=stop@9", ["-tp", "2", "--step-timeout", "1"]),
        ("worker.before_execute[worker 0.0]=raise:ValueError@5;worker.before_load[worker 0.1]=kill@2", ["-tp", "2"]),
        ("worker.before_execute=raise:MemoryError@9;engine.after_ready=kill@2", []),
        ("engine.before_schedule=stop@9", ["--step-timeout", "1"]),
        ("engine.before_execute[engine 1]=kill@5;engine.before_start[engine 1]=kill@2", ["-dp", "2"]),
        ("coordinator.before_receive=kill@4;engine.after_send=kill@9", ["--api-server-count", "2"]),
        ("kv.before_save=kill@5;kv.after_load=raise@12", ["--kv-connector", "host"]),
        ("kv.before_match=raise@1;kv.before_poll=exit@9", ["--kv-connector", "host"]),
    ],
    ids=["stopped rank", "both ranks", "no memory, and again", "stopped", "of two", "several servers", "save", "match"],
)  # fmt: skip
def test_faults_of_other_processes(faults, flags, serve, expected):
    disturbed = serve(faults, *flags)
    disturbed.check(expected, disturbed.run())
    for fault in faults.split(";"):
        assert f"failpoint {fault} in" in disturbed.server.output
