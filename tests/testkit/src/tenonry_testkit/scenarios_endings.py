"""Scenes of the scheduler suite about how requests end and who is told. Test process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tenonry.outputs import FinishReason
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rig import Rig
from tenonry_testkit.rules import (
    COUNTS,
    GONE_IS_SENT,
    RIGHT_ENDING,
    expect,
)
from tenonry_testkit.spec import RigSpec
from tenonry_testkit.traffic import Op, Send, play, send

MakeRig = Callable[..., Rig]


def play_out(rig: Rig, ops: Sequence[Op]) -> None:
    """A program, then everything to its end."""
    play(rig, ops)
    rig.drain()


def idle_is_idle(rig: Rig) -> None:
    """Nothing to do is said in all ways."""
    scheduler = rig.scheduler
    expect(not scheduler.has_requests(), GONE_IS_SENT, "a new scheduler has requests")
    expect(not rig.launch(), GONE_IS_SENT, "a new scheduler schedules something")
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
    send(rig, Send())
    rig.drain()
    expect(not rig.launch(), GONE_IS_SENT, "an idle scheduler schedules something")
    scheduler.shutdown()


def rows_change_hands(rig: Rig) -> None:
    """Stops, aborts and resets while results are on their way, and at once the next request in the same row."""
    for number in range(6):
        send(rig, Send(family=number, length=3, max_tokens=9, stop_after=2))
        leaver = send(rig, Send(family=number + 9, length=5, max_tokens=9))
        for _ in range(4 + number):
            rig.turn()
        if rig.can_launch:
            rig.launch()
        rig.abort([leaver.handle])
        if number % 3 == 1:
            rig.reset_prefix_cache(reset_running_requests=True)
        send(rig, Send(family=number + 20, length=2, max_tokens=3))
        if rig.can_launch:
            rig.launch()
        while rig.in_flight and number % 2:
            rig.deliver()
    rig.drain()


def gone_is_sent(rig: Rig) -> None:
    """One request per way to end; after each, the workers must come to hold no row."""
    ways: list[Callable[[Entry], object]] = [
        lambda entry: None,
        lambda entry: rig.abort([entry.handle]),
        rig.fail,
        lambda entry: (
            rig.reset_prefix_cache(reset_running_requests=True) and rig.abort([entry.handle])
        ),
    ]
    for way in ways:
        entry = send(rig, Send(length=6, max_tokens=5))
        rig.turn()
        rig.turn()
        way(entry)
        rig.drain()
        held = np.flatnonzero(rig.fake_worker.state.handle)
        expect(len(held) == 0, GONE_IS_SENT, f"the worker still holds rows {held.tolist()}")


def a_row_fails(make_rig: MakeRig) -> None:
    """One of several fails, in its prompt or while decoding; who comes after with the same prompt computes afresh."""
    for turns in (0, 1, 3, 5):
        for depth in (1, 2, 3):
            rig = make_rig(RigSpec(depth=depth, max_num_batched_tokens=8, num_blocks=24))
            broken = send(rig, Send(family=1, length=17, max_tokens=8))
            send(rig, Send(family=1, length=17, max_tokens=8, tail=1))
            send(rig, Send(family=2, length=9, max_tokens=8))
            for _ in range(turns):
                rig.turn()
            rig.fail(broken)
            for _ in range(4):
                rig.turn()
            send(rig, Send(family=1, length=17, max_tokens=8))
            rig.drain()
            how = broken.finished
            failed = how is not None and how.reason is FinishReason.ERROR
            expect(failed, RIGHT_ENDING, f"{broken} has a failed row, but ended with {how}")


def statistics_hold(rig: Rig, ops: Sequence[Op]) -> None:
    """After every event the numbers must fit the ledger; counters are since the previous call."""
    steps = 0
    for op in ops:
        play(rig, [op])
        stats = rig.scheduler.make_stats()
        live = rig.ledger.num_live
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
        steps == len(rig.outputs),
        COUNTS,
        f"num_steps adds up to {steps} after {len(rig.outputs)} steps",
    )
    rig.drain()
