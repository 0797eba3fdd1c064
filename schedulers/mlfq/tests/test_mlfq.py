"""The conformance suite over `mlfq`, and its rules: skip-join, demotion, preemption, promotion."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tenonry_scheduler_mlfq import MlfqOptions, MlfqScheduler
from tenonry_testkit.harness import HarnessSpec, SchedulerHarness
from tenonry_testkit.scheduler import SchedulerContract
from tenonry_testkit.targets import resolve_target


@pytest.mark.slow
class TestContract(SchedulerContract):
    scheduler = MlfqScheduler
    effort = 0.05


@pytest.mark.slow
class TestContractWithSmallQuanta(SchedulerContract):
    """Requests change levels within a few tokens, so that most preemptions change a key."""

    scheduler = "mlfq"
    options: ClassVar[dict[str, Any]] = {"levels": 4, "quantum": 3, "promote_after": 0.02}
    effort = 0.05


def make_harness(**spec: Any) -> SchedulerHarness:
    options = MlfqOptions(levels=3, quantum=4, ratio=2, promote_after=5)
    return SchedulerHarness(
        MlfqScheduler, HarnessSpec(**{"num_blocks": 40, **spec}), options=options
    )


def test_name_leads_to_the_class():
    assert resolve_target("scheduler", "mlfq")[0] is MlfqScheduler


def test_request_joins_the_first_level_that_its_prompt_fits():
    harness = make_harness()
    entries = [harness.add([1] * length, max_tokens=1) for length in (4, 5, 8, 9, 20)]
    assert [entry.request.key[0] for entry in entries] == [0, 1, 1, 2, 2]
    harness.drain()


def test_short_request_takes_the_row_of_a_long_one():
    harness = make_harness(max_num_seqs=1)
    long = harness.add([1] * 9, max_tokens=8)
    harness.turn()
    short = harness.add([2] * 2, max_tokens=1)
    harness.turn()
    assert long.request.row < 0
    assert (long.request.num_preemptions, long.request.key[0]) == (1, 2)
    assert short.started_at is not None
    harness.drain()


def test_equal_level_preempts_nothing():
    harness = make_harness(max_num_seqs=1)
    first = harness.add([1] * 9, max_tokens=8)
    harness.turn()
    harness.add([2] * 10, max_tokens=1)
    harness.drain()
    assert first.request.num_preemptions == 0


def test_running_request_moves_down_as_it_generates():
    harness = make_harness(max_num_seqs=1)
    first = harness.add([1] * 2, max_tokens=12)
    for _ in range(4):
        harness.turn()  # more than four tokens: below a new short one
    harness.add([2] * 2, max_tokens=1)
    harness.turn()
    assert first.request.num_preemptions == 1
    harness.drain()


def test_long_wait_returns_a_request_to_the_top():
    harness = make_harness(max_num_seqs=1)
    running = harness.add([1] * 9, max_tokens=10)
    harness.turn()
    waiting = harness.add([2] * 12, max_tokens=1)
    harness.turn()
    assert waiting.request.row < 0
    harness.clock.advance(5.0)
    harness.turn()
    assert running.request.num_preemptions == 1
    assert waiting.request.key == (0, waiting.request.arrival, 12)
    harness.drain()


def test_pending_token_does_not_move_a_request_down():
    """Else two requests at a bound take the row from each other for ever: each loses its pending token."""
    harness = make_harness(max_num_seqs=1, depth=2)
    entries = [harness.add([1] * 3, max_tokens=4), harness.add([2] * 4, max_tokens=4)]
    for _ in range(40):
        harness.turn()
    assert not any(entry.is_live for entry in entries)
    assert sum(entry.request.num_preemptions for entry in entries) <= 2
    harness.drain()
