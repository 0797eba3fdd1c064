"""Scenarios of the scheduler suite for ends of requests and their outputs. Test process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from tenonry.outputs import FinishReason
from tenonry.step import RowFailure
from tenonry_scheduling import BaseScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rules import (
    COUNTS,
    GONE_IS_SENT,
    NAMES_ATTRIBUTES,
    ONE_OUTCOME,
    RIGHT_ENDING,
    ROUNDS,
    expect,
)
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Op, Send, play, send

MakeHarness = Callable[..., SchedulerHarness]
UNKNOWN_FAILURE = 99


def play_out(harness: SchedulerHarness, ops: Sequence[Op]) -> None:
    """Run the operations, then every request to its end."""
    play(harness, ops)
    harness.drain()


def idle_is_idle(harness: SchedulerHarness) -> None:
    """Check that no method of the scheduler reports or schedules a request without any."""
    scheduler = harness.scheduler
    expect(not scheduler.has_requests(), GONE_IS_SENT, "a new scheduler has requests")
    expect(not harness.launch(), GONE_IS_SENT, "a new scheduler schedules something")
    expect(
        scheduler.finish_requests(None, FinishReason.ABORT) == [],
        COUNTS,
        "a new scheduler ends something",
    )
    expect(
        scheduler.finish_requests([7], FinishReason.ABORT) == [],
        COUNTS,
        "an unknown handle ends something",
    )
    send(harness, Send())
    harness.drain()
    expect(not harness.launch(), GONE_IS_SENT, "an idle scheduler schedules something")
    if isinstance(scheduler, BaseScheduler):
        _attributes_are_named(scheduler)
    scheduler.shutdown()


def _attributes_are_named(scheduler: BaseScheduler) -> None:
    """An attribute that a scheduler lacks is named, and the call of the base constructor if that is missing."""
    cls = type(scheduler)
    for each, lacks_call in ((scheduler, False), (cls.__new__(cls), True)):
        try:
            found = each.missing_attribute
        except AttributeError as error:
            text = str(error)
            names_call = "super().__init__(context, blocks)" in text
            is_right = "missing_attribute" in text and names_call == lacks_call
            expect(
                is_right, NAMES_ATTRIBUTES, "'{}', while the call is missing: {}", text, lacks_call
            )
        else:
            expect(False, NAMES_ATTRIBUTES, "it has a missing_attribute: {}", found)


def rows_change_hands(harness: SchedulerHarness) -> None:
    """Stop, abort and reset with results in flight, and immediately add the next request to the same row."""
    for number in range(6):
        send(harness, Send(family=number, length=3, max_tokens=9, stop_after=2))
        leaver = send(harness, Send(family=number + 9, length=5, max_tokens=9))
        for _ in range(4 + number):
            harness.turn()
        if harness.can_launch:
            harness.launch()
        harness.abort([leaver.handle])
        if number % 3 == 1:
            harness.reset_prefix_cache(reset_running_requests=True)
        send(harness, Send(family=number + 20, length=2, max_tokens=3))
        if harness.can_launch:
            harness.launch()
        while harness.in_flight and number % 2:
            harness.deliver()
    harness.drain()


def rounds_are_played(make_harness: MakeHarness, **spec: Any) -> None:
    """One request alone decodes several tokens in some step; the library decides so for schedulers built on it."""
    harness = make_harness(HarnessSpec(num_blocks=40, **spec))
    send(harness, Send(max_tokens=20))
    harness.drain()
    is_played = any(output.round_tokens > 1 for output in harness.outputs)
    is_due = isinstance(harness.scheduler, BaseScheduler)
    expect(is_played or not is_due, ROUNDS, "one request alone decodes one token in each step")


def rows_leave_rounds(make_harness: MakeHarness, **spec: Any) -> None:
    """Abort or fail each of three requests in a multi-token step."""
    for which in (0, 1, 2, 3, 4, 5):
        harness = make_harness(HarnessSpec(num_blocks=40, **spec))
        entries = [send(harness, Send(family=number, max_tokens=20)) for number in range(3)]
        for _ in range(12):
            if not harness.launch() or harness.outputs[-1].round_tokens > 1:
                break
            harness.deliver()
        if which < 3:
            harness.abort([entries[which].handle])
        elif harness.in_flight:
            harness.fail(entries[which - 3])
            harness.deliver()
        harness.drain()


def requests_end_at_stop_ids(make_harness: MakeHarness, **spec: Any) -> None:
    """Send one request for each distance of its stop id to `min_tokens`; in engines with rounds it ends in one.

    The worker samples the stop id before `min_tokens`, or holds it back.
    """
    for holds_back, min_tokens in product((True, False), range(2, 9)):
        engine = HarnessSpec(num_blocks=40, holds_back_stop_ids=holds_back, **spec)
        harness = make_harness(engine)
        send(harness, Send(max_tokens=12, stop_after=4, min_tokens=min_tokens, other_stop_ids=2))
        harness.drain()


def gone_is_sent(harness: SchedulerHarness) -> None:
    """End one request in each way; afterwards the worker must hold no row."""
    ways: list[Callable[[Entry], object]] = [
        lambda entry: None,
        lambda entry: harness.abort([entry.handle]),
        harness.fail,
        lambda entry: (
            harness.reset_prefix_cache(reset_running_requests=True)
            and harness.abort([entry.handle])
        ),
    ]
    for way in ways:
        entry = send(harness, Send(length=6, max_tokens=5))
        harness.turn()
        harness.turn()
        way(entry)
        harness.drain()
        held = np.flatnonzero(harness.fake_worker.state.handle)
        expect(len(held) == 0, GONE_IS_SENT, f"the worker still holds rows {held.tolist()}")


def a_row_fails(make_harness: MakeHarness, depths: Sequence[int] = (1, 2, 3), **model: Any) -> None:
    """Fail one row of several, in its prompt or while decoding; a later request with its prompt is computed again.

    `model`: fields of `HarnessSpec` for its KV groups.
    """
    for turns in (0, 1, 3, 5):
        for depth in depths:
            harness = make_harness(
                HarnessSpec(depth=depth, max_num_batched_tokens=8, num_blocks=24, **model)
            )
            broken = send(harness, Send(family=1, length=17, max_tokens=8))
            send(harness, Send(family=1, length=17, max_tokens=8, tail=1))
            send(harness, Send(family=2, length=9, max_tokens=8))
            for _ in range(turns):
                harness.turn()
            harness.fail(broken)
            for _ in range(4):
                harness.turn()
            send(harness, Send(family=1, length=17, max_tokens=8))
            harness.drain()
            how = broken.finished
            failed = how is not None and how.reason is FinishReason.ERROR
            expect(failed, RIGHT_ENDING, f"{broken} has a failed row, but ended with {how}")


def failures_have_codes(make_harness: MakeHarness) -> None:
    """Fail a row for each reason of the worker interface, and for an unknown one; the outcome has its code."""
    for code in (*RowFailure.TEXT, UNKNOWN_FAILURE):
        harness = make_harness(HarnessSpec(num_blocks=24))
        broken = send(harness, Send(length=9, max_tokens=8))
        harness.fail(broken, code)
        harness.drain()
        how, wanted = broken.finished, RowFailure.CODE.get(code, "")
        is_right = how is not None and how.code == wanted
        expect(
            is_right,
            RIGHT_ENDING,
            "{} failed with {}: {}, expected {!r}",
            broken,
            code,
            how,
            wanted,
        )


def a_row_fails_after_its_end(make_harness: MakeHarness, depth: int) -> None:
    """Abort a request while a step in flight fails its row; a later one with its prompt runs on no block of it."""
    for turns in (0, 1, 3):
        harness = make_harness(HarnessSpec(depth=depth, num_blocks=24))
        leaver = send(harness, Send(family=1, length=9, max_tokens=12))
        for _ in range(turns):
            harness.turn()
        harness.fail(leaver)
        if harness.can_launch:
            harness.launch()
        harness.abort([leaver.handle])
        while harness.in_flight:
            harness.deliver()
        later = send(harness, Send(family=1, length=17, max_tokens=3))
        harness.drain()
        how = later.finished
        served = how is not None and how.reason is FinishReason.LENGTH
        expect(served, RIGHT_ENDING, "{} ended with {} after another row failed", later, how)


def statistics_hold(harness: SchedulerHarness, ops: Sequence[Op]) -> None:
    """Compare the statistics with the ledger after every operation; counters start at the previous call."""
    steps = 0
    for op in ops:
        play(harness, [op])
        stats = harness.scheduler.make_stats()
        live = harness.ledger.num_live
        total = stats.num_running + stats.num_waiting
        expect(
            total == live,
            COUNTS,
            f"{stats.num_running} running + {stats.num_waiting} waiting, {live} unfinished",
        )
        share = 0.0 <= stats.kv_cache_usage <= 1.0
        expect(share, COUNTS, f"kv_cache_usage is {stats.kv_cache_usage}")
        hits = 0 <= stats.prefix_cache_hits <= stats.prefix_cache_queries
        expect(hits, COUNTS, f"{stats.prefix_cache_hits} hits of {stats.prefix_cache_queries}")
        expect(
            stats.num_preemptions >= 0 <= stats.num_steps, COUNTS, f"a counter went down: {stats}"
        )
        numbers = all(isinstance(value, int | float) for value in stats.extra.values())
        expect(numbers, COUNTS, f"extra holds something that is no number: {stats.extra}")
        steps += stats.num_steps
    expect(
        steps == len(harness.outputs),
        COUNTS,
        f"num_steps adds up to {steps} after {len(harness.outputs)} steps",
    )
    harness.drain()


def a_crowd_waits(harness: SchedulerHarness) -> None:
    """Queue many requests, abort most of them, and run the others."""
    entries = [
        send(harness, Send(family=number % 5, length=2, max_tokens=1)) for number in range(90)
    ]
    harness.turn()
    waiting = [entry.handle for entry in entries[8:] if entry.is_live]
    harness.abort(waiting[::2] + waiting[1::4])
    entries += [send(harness, Send(family=number, length=3)) for number in range(70)]
    harness.turn()
    harness.abort([entry.handle for entry in entries[::3] if entry.is_live])
    harness.drain()
    starved = [entry for entry in entries if entry.finished is None]
    expect(not starved, ONE_OUTCOME, "{} of a crowd never ended", starved)
