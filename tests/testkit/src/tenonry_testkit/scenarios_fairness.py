"""Fairness and determinism scenarios of the scheduler suite. Test process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np

from tenonry.step import SchedulerOutput
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import OWN_ORDER, SAME_DECISIONS, expect
from tenonry_testkit.scenarios_endings import MakeHarness, play_out
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Abort, Deliver, Launch, Op, Reset, Send, Tick, Turn, play, send
from tenonry_testkit.wall_clock import WallClockTrap


def streams() -> st.SearchStrategy[tuple[int, Send, list[Send]]]:
    """Draw (depth, the request that must not starve, the requests that arrive after it, repeatedly)."""
    patient = st.builds(
        Send,
        family=st.just(5),
        length=st.integers(8, 20),
        max_tokens=st.integers(4, 10),
        priority=st.just(9),
    )
    hasty = st.builds(
        Send,
        family=st.integers(0, 3),
        length=st.integers(1, 6),
        max_tokens=st.integers(1, 4),
        priority=st.just(0),
    )
    return st.tuples(st.integers(1, 3), patient, st.lists(hasty, min_size=2, max_size=6))


def a_stream_goes_by(
    make_harness: MakeHarness, depth: int, patient: Send, hasty: list[Send]
) -> None:
    """Add new requests until the patient one has run, or has been overtaken too often."""
    harness = make_harness(
        HarnessSpec(depth=depth, max_num_seqs=3, max_num_batched_tokens=8, num_blocks=12)
    )
    for ask in hasty:
        send(harness, ask)
    waiting = send(harness, patient)
    bound = harness.spec.max_num_seqs
    number = 0
    starvation_free = harness.scheduler.starvation_free
    while waiting.is_live and number < 40 * bound:
        while harness.ledger.num_live < 3 * bound:
            send(harness, hasty[number % len(hasty)])
            number += 1
        harness.turn()
        harness.clock.advance(0.01)
        if starvation_free:
            harness.step_checker.check_starvation()
    harness.drain()
    if not starvation_free:
        own_order_is_kept(
            make_harness(HarnessSpec(depth=depth, max_num_seqs=2, num_blocks=20)), hasty
        )


def own_order_is_kept(harness: SchedulerHarness, asks: list[Send]) -> None:
    """Check that of equal requests with different priority the one with the smaller key starts no later.

    The key is that of the queue before the request started: a scheduler may change it once a request has run. Skipped
    for schedulers without keys on their requests; those with a policy set one.
    """
    entries = [
        send(harness, dataclasses.replace(asks[0], priority=number % 3)) for number in range(8)
    ]
    first_run = harness.step_checker.first_run
    keys: dict[int, Any] = {entry.handle: entry.request.key for entry in entries}
    while any(entry.is_live for entry in entries):
        waiting = [entry for entry in entries if entry.handle not in first_run]
        if not waiting or not harness.turn():
            break
        keys |= {entry.handle: entry.request.key for entry in waiting}
    harness.drain()
    if any(key is None for key in keys.values()):
        return
    started = [
        first_run[entry.handle]
        for entry in sorted(entries, key=lambda each: (keys[each.handle], each.arrival))
    ]
    expect(
        started == sorted(started),
        OWN_ORDER,
        f"in the scheduler's order, requests start in steps {started}",
    )


def twice_the_same(make_harness: MakeHarness, depth: int, ops: Sequence[Op]) -> None:
    """Compare three runs with other addresses and random state each, the last with other request ids, too."""
    spec = HarnessSpec(depth=depth, num_blocks=9)
    runs = []
    for run in range(3):
        random.seed(run)
        clutter = [object() for _ in range(101 * run)]  # changes addresses of later objects
        harness = make_harness(spec)
        if run == 2:
            harness.name_requests(lambda number: f"{number * 7919 % 1009:x}-other")
        play_out(harness, ops)
        runs.append(harness.outputs)
        del clutter
    for other in runs[1:]:
        _compare(runs[0], other)


def _compare(first: list[SchedulerOutput], second: list[SchedulerOutput]) -> None:
    expect(len(first) == len(second), SAME_DECISIONS, f"{len(first)} steps, then {len(second)}")
    for step, repeated in zip(first, second, strict=True):
        expect(
            encoded(step) == encoded(repeated),
            SAME_DECISIONS,
            f"step {step.step_id} was\n{step}\nthen\n{repeated}",
        )


def encoded(output: SchedulerOutput) -> bytes:
    """Serialise a step."""
    return msgspec.msgpack.encode(output, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a step holds a {type(value).__name__}, which cannot travel")


def no_other_clock(make_harness: MakeHarness) -> None:
    """Run every kind of operation while all clocks but the context's raise."""
    packages = {
        cls.__module__.partition(".")[0]
        for cls in type(make_harness(HarnessSpec()).scheduler).__mro__
    }
    trap = WallClockTrap(packages - {"abc", "builtins"})
    try:
        for depth in (1, 2):
            harness = make_harness(HarnessSpec(depth=depth), guard=trap.watched)
            harness.guard = trap.watched
            asks: list[Op] = [
                Send(family=n % 3, length=4 + n, max_tokens=3 + n, stop_after=2) for n in range(6)
            ]
            play(
                harness,
                [
                    *asks,
                    Turn(6),
                    Tick(5.0),
                    Abort(1),
                    Launch(),
                    Reset(running=True),
                    Deliver(),
                    Turn(9),
                    *asks,
                ],
            )
            harness.drain()
    finally:
        trap.close()
