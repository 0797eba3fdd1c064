"""The scenes of the scheduler suite: each plays something that a line of the contract is about. Test process."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np

from tenonry.interfaces.kv_connector import KVConnectorContext, KVConnectorRole
from tenonry.outputs import FinishReason
from tenonry.step import SchedulerOutput
from tenonry_testkit.fakes.connector import STORES, MemoryConnector, MemoryOptions
from tenonry_testkit.fakes.model import fake_model
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rig import Rig, RigSpec
from tenonry_testkit.rules import (
    CACHE_IS_PRIVATE,
    COUNTS,
    GONE_IS_SENT,
    NOTHING_LEAKS,
    OWN_ORDER,
    RIGHT_ENDING,
    SAME_DECISIONS,
    expect,
)
from tenonry_testkit.traffic import Abort, Deliver, Launch, Op, Reset, Send, Tick, Turn, play, send
from tenonry_testkit.wall_clock import WallClockTrap

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
    expect(scheduler.finish_requests(None, FinishReason.ABORT) == [], COUNTS, "a new scheduler ends something")
    expect(scheduler.finish_requests([7], FinishReason.ABORT) == [], COUNTS, "an unknown handle ends something")
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
        lambda entry: rig.fail(entry),
        lambda entry: rig.reset_prefix_cache(reset_running_requests=True) and rig.abort([entry.handle]),
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
    """One of several fails in its prompt, one while decoding; who comes after with the same prompt computes it afresh."""
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
        live = len(rig.ledger.live)
        total = stats.num_running + stats.num_waiting
        expect(total == live, COUNTS, f"{stats.num_running} running + {stats.num_waiting} waiting, {live} unfinished")
        share = 0.0 <= stats.kv_cache_usage <= 1.0
        expect(share, COUNTS, f"kv_cache_usage is {stats.kv_cache_usage}")
        hits = 0 <= stats.prefix_cache_hits <= stats.prefix_cache_queries
        expect(hits, COUNTS, f"{stats.prefix_cache_hits} hits of {stats.prefix_cache_queries}")
        expect(stats.num_preemptions >= 0 <= stats.num_steps, COUNTS, f"a counter went down: {stats}")
        numbers = all(isinstance(value, int | float) for value in stats.extra.values())
        expect(numbers, COUNTS, f"extra holds something that is no number: {stats.extra}")
        steps += stats.num_steps
    expect(steps == len(rig.outputs), COUNTS, f"num_steps adds up to {steps} after {len(rig.outputs)} steps")
    rig.drain()


# ------------------------------------------------------------------------------------------------------ fairness
def streams() -> st.SearchStrategy[tuple[int, Send, list[Send]]]:
    """(depth, the one who must not starve, those who come after it, again and again)."""
    patient = st.builds(
        Send, family=st.just(5), length=st.integers(8, 20), max_tokens=st.integers(4, 10), priority=st.just(9)
    )
    hasty = st.builds(
        Send, family=st.integers(0, 3), length=st.integers(1, 6), max_tokens=st.integers(1, 4), priority=st.just(0)
    )
    return st.tuples(st.integers(1, 3), patient, st.lists(hasty, min_size=2, max_size=6))


def a_stream_goes_by(make_rig: MakeRig, depth: int, patient: Send, hasty: list[Send]) -> None:
    """New requests keep coming until the patient one ran, or until it was overtaken far too often."""
    rig = make_rig(RigSpec(depth=depth, max_num_seqs=3, max_num_batched_tokens=8, num_blocks=12))
    for ask in hasty:
        send(rig, ask)
    waiting = send(rig, patient)
    bound, number = rig.spec.max_num_seqs, 0
    starvation_free = rig.scheduler.starvation_free
    while waiting.is_live and number < 40 * bound:
        while len(rig.ledger.live) < 3 * bound:
            send(rig, hasty[number % len(hasty)])
            number += 1
        rig.turn()
        rig.clock.advance(0.01)
        if starvation_free:
            rig.watch.check_starvation()
    rig.drain()
    if not starvation_free:
        own_order_is_kept(make_rig(RigSpec(depth=depth, max_num_seqs=2, num_blocks=20)), hasty)


def own_order_is_kept(rig: Rig, asks: list[Send]) -> None:
    """Equal requests that differ in what the order looks at: the smaller key starts no later.

    Only schedulers that leave a key on their requests, as those with a policy do, can be asked.
    """
    entries = [send(rig, dataclasses.replace(asks[0], priority=number % 3)) for number in range(8)]
    rig.drain()
    keyed = [(entry.request.key, entry.arrival, rig.watch.first_run[entry.handle]) for entry in entries]
    if any(key is None for key, _, _ in keyed):
        return
    started = [first for _, _, first in sorted(keyed, key=lambda item: item[:2])]
    expect(started == sorted(started), OWN_ORDER, f"in the scheduler's order, requests start in steps {started}")


# ------------------------------------------------------------------------------------------------------ blocks
def the_pool_is_whole(make_rig: MakeRig, depth: int, ops: Sequence[Op]) -> None:
    """A storm, its end, and then a request that needs every block there is; twice, to see a slow leak."""
    rig = make_rig(RigSpec(depth=depth, max_num_batched_tokens=12))
    for _ in range(2):
        play_out(rig, ops)
        largest = send(rig, Send(family=7, length=rig.spec.max_model_len - 4, max_tokens=99))
        rig.drain()
        whole = largest.finished is not None and largest.finished.reason is FinishReason.LENGTH
        expect(whole, NOTHING_LEAKS, f"{largest} needs the whole pool, and ended with {largest.finished}")
    if rig.scheduler.reset_prefix_cache():
        rig.check_end()


def the_cache_is_private(make_rig: MakeRig) -> None:
    """The same prompt under another salt, adapter or wish is computed anew; the reset cache finds nothing."""
    rig = make_rig(RigSpec(num_blocks=40))
    plain = Send(family=1, length=21, max_tokens=2)
    changes: list[dict[str, Any]] = [
        {},
        {"cache_salt": "tenant-1"},
        {"cache_salt": "tenant-2"},
        {"adapter": "a"},
        {"adapter": "a", "cache_salt": "tenant-1"},
        {"prompt_logprobs": 1},
    ]
    for change in changes:
        entry = send(rig, dataclasses.replace(plain, **change))
        rig.drain()
        expect(not entry.num_cached, CACHE_IS_PRIVATE, f"{change or 'the first'} finds {entry.num_cached} tokens")
    done = rig.reset_prefix_cache()
    expect(done, CACHE_IS_PRIVATE, "reset_prefix_cache() of an idle scheduler returned False")
    for change in changes[:2]:
        entry = send(rig, dataclasses.replace(plain, **change))
        rig.drain()
        expect(not entry.num_cached, CACHE_IS_PRIVATE, f"after a reset {change} finds {entry.num_cached} tokens")


def blocks_come_from_elsewhere(make_rig: MakeRig, how: str, depth: int, ops: Sequence[Op]) -> None:
    """One engine fills the store, a second one, with an empty cache, is served from it."""
    spec = RigSpec(depth=depth, num_blocks=24, max_num_batched_tokens=12)
    options = MemoryOptions(
        store="scheduler contract", asynchronous="async" in how, fail_loads=2 if "failing" in how else 0
    )
    STORES.pop(options.store, None)
    try:
        for _ in range(2):
            play_out(make_rig(spec, connectors=memory_connectors(spec, options)), ops)
    finally:
        STORES.pop(options.store, None)


def memory_connectors(spec: RigSpec, options: MemoryOptions) -> tuple[MemoryConnector, MemoryConnector]:
    """The scheduler's half and the worker's."""
    halves = [
        MemoryConnector(
            KVConnectorContext(
                spec.engine_config(),
                fake_model(),
                role,
                engine_id="memory_dp0",
                kv_cache=spec.kv_cache(),
                options=options,
            )
        )
        for role in (KVConnectorRole.SCHEDULER, KVConnectorRole.WORKER)
    ]
    return halves[0], halves[1]


# ------------------------------------------------------------------------------------------------------ determinism
def twice_the_same(make_rig: MakeRig, depth: int, ops: Sequence[Op]) -> None:
    """Three runs: two alike, and one whose request ids, addresses and random state differ."""
    spec = RigSpec(depth=depth, num_blocks=9)
    runs = []
    for run in range(3):
        random.seed(run)
        clutter = [object() for _ in range(101 * run)]  # other addresses for everything that is made from now on
        rig = make_rig(spec)
        if run == 2:
            rig.name_requests(lambda number: f"{number * 7919 % 1009:x}-other")
        play_out(rig, ops)
        runs.append(rig.outputs)
        del clutter
    for other in runs[1:]:
        _compare(runs[0], other)


def _compare(first: list[SchedulerOutput], second: list[SchedulerOutput]) -> None:
    expect(len(first) == len(second), SAME_DECISIONS, f"{len(first)} steps, then {len(second)}")
    for one, two in zip(first, second, strict=True):
        expect(encoded(one) == encoded(two), SAME_DECISIONS, f"step {one.step_id} was\n{one}\nthen\n{two}")


def encoded(output: SchedulerOutput) -> bytes:
    """A step as bytes."""
    return msgspec.msgpack.encode(output, enc_hook=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [value.dtype.str, value.tolist()]
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a step holds a {type(value).__name__}, which cannot travel")


def no_other_clock(make_rig: MakeRig) -> None:
    """A life with every kind of event, while all clocks but the context's raise."""
    packages = {cls.__module__.partition(".")[0] for cls in type(make_rig(RigSpec()).scheduler).__mro__}
    trap = WallClockTrap(packages - {"abc", "builtins"})
    try:
        for depth in (1, 2):
            rig = make_rig(RigSpec(depth=depth), guard=trap.watched)
            rig.guard = trap.watched
            asks: list[Op] = [Send(family=n % 3, length=4 + n, max_tokens=3 + n, stop_after=2) for n in range(6)]
            play(rig, [*asks, Turn(6), Tick(5.0), Abort(1), Launch(), Reset(running=True), Deliver(), Turn(9), *asks])
            rig.drain()
    finally:
        trap.close()
