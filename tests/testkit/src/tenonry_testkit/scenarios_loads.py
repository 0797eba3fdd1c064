"""Timing scenarios of KV connectors in the scheduler suite: endless loads, and resets. Test process."""

from __future__ import annotations

from itertools import product

from tenonry.outputs import FinishReason
from tenonry_testkit.fakes.connector import STORES, MemoryOptions
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import CACHE_IS_PRIVATE, LATE_LOADS, RIGHT_ENDING, expect
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Abort, Send, Turn, play, send

STORE = "scheduler contract"
LONG_S = 100.0
MAX_TURNS = 400
SOON = 60  # turns, of a second each


def resets_are_final(make_harness: MakeHarness) -> None:
    """Reset a cache during a request; a later engine finds nothing of it in the connector's store."""
    spec = HarnessSpec(num_blocks=26, max_num_batched_tokens=12)
    ask = Send(family=1, length=17, max_tokens=6)
    STORES.pop(STORE, None)
    try:
        for _ in range(2):
            halves = memory_connectors(spec, MemoryOptions(store=STORE))
            harness = make_harness(spec, connectors=halves)
            entry = send(harness, ask)
            for _ in range(3):
                harness.turn()
            harness.reset_prefix_cache()
            harness.drain()
            expect(
                not entry.num_cached,
                CACHE_IS_PRIVATE,
                "after a reset {} finds {} tokens in the connector's store",
                entry,
                entry.num_cached,
            )
    finally:
        STORES.pop(STORE, None)


def loads_fail_around_a_reset(make_harness: MakeHarness) -> None:
    """Preempt a request with its load in flight, load again, and fail both loads."""
    spec = HarnessSpec(depth=2, num_blocks=26)
    STORES.pop(STORE, None)
    try:
        for fail_loads in (0, 2, 3):
            options = MemoryOptions(store=STORE, fail_loads=fail_loads)
            harness = make_harness(spec, connectors=memory_connectors(spec, options))
            send(harness, Send(family=1, length=17))
            for _ in range(2):
                harness.launch()
                harness.reset_prefix_cache(reset_running_requests=True)
            harness.drain()
            send(harness, Send(family=1, length=17))
            harness.drain()
    finally:
        STORES.pop(STORE, None)


def loads_are_aborted(make_harness: MakeHarness, depth: int) -> None:
    """Abort requests before, while and after their K/V is loaded; later ones with their prompts find right blocks."""
    for size, turns in product((1, 4), range(1, 7)):
        spec = HarnessSpec(depth=depth, block_size=size, num_blocks=160 // size)
        asks = [Send(family=number, length=17, max_tokens=3) for number in range(3)]
        STORES.pop(STORE, None)
        try:
            filler = make_harness(
                spec, connectors=memory_connectors(spec, MemoryOptions(store=STORE))
            )
            play(filler, asks)
            filler.drain()
            options = MemoryOptions(store=STORE, asynchronous=True, delay_polls=2)
            harness = make_harness(spec, connectors=memory_connectors(spec, options))
            play(harness, [*asks, Turn(turns), Abort(None), *asks, Turn(1), Abort(1)])
            harness.drain()
        finally:
            STORES.pop(STORE, None)


def arrivals_share_a_step(make_harness: MakeHarness, depth: int) -> None:
    """Load the beginnings of prompts whose rests exceed a step together, with and without chunked prefill."""
    for config in ((), (("enable_chunked_prefill", False),)):
        spec = HarnessSpec(depth=depth, num_blocks=60, max_num_batched_tokens=32, config=config)
        options = MemoryOptions(store=STORE, asynchronous=True)
        STORES.pop(STORE, None)
        try:
            for length in (9, 31):
                harness = make_harness(spec, connectors=memory_connectors(spec, options))
                for family in (1, 2, 3, 4):
                    send(harness, Send(family=family, length=length, max_tokens=1))
                    send(harness, Send(family=9, length=1, max_tokens=9 - depth))
                harness.drain()
        finally:
            STORES.pop(STORE, None)


def a_failed_row_spoils_no_load(make_harness: MakeHarness, depth: int) -> None:
    """Report the failure of a row while a request that shares its blocks waits for a load."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    STORES.pop(STORE, None)
    try:
        filler = make_harness(spec, connectors=memory_connectors(spec, MemoryOptions(store=STORE)))
        send(filler, Send(family=1, length=25))
        filler.drain()
        options = MemoryOptions(store=STORE, asynchronous=True, delay_polls=4, fail_loads=1)
        harness = make_harness(spec, connectors=memory_connectors(spec, options))
        broken = send(harness, Send(family=1, length=9))  # its load fails, and then it does
        harness.fail(broken)
        while broken.started_at is None and harness.turn():
            pass
        waiting = send(harness, Send(family=1, length=25))
        harness.launch()
        harness.drain()
        how = waiting.finished
        served = how is not None and how.reason is FinishReason.LENGTH
        expect(
            served, RIGHT_ENDING, "{} found blocks of a failed row, and ended with {}", waiting, how
        )
    finally:
        STORES.pop(STORE, None)


def loads_without_end(make_harness: MakeHarness, depth: int) -> None:
    """Start loads that do not end; every request is served, and later transfers are harmless."""
    spec = HarnessSpec(depth=depth, num_blocks=26, max_num_batched_tokens=12)
    STORES.pop(STORE, None)
    try:
        filler = make_harness(spec, connectors=memory_connectors(spec, MemoryOptions(store=STORE)))
        for family in (1, 2, 3, 4):
            send(filler, Send(family=family, length=17))
        filler.drain()
        options = MemoryOptions(store=STORE, asynchronous=True, delay_polls=10**9)
        connectors = memory_connectors(spec, options)
        harness = make_harness(spec, connectors=connectors)
        _outlast(harness)
        connectors[1].hurry()
        _compete(harness)
        if harness.outputs and connectors[0].num_promised:
            _load_again(harness)
    finally:
        STORES.pop(STORE, None)


def _outlast(harness: SchedulerHarness) -> None:
    """Advance time until every request has ended, one of them by an abort during its load, and further."""
    entries = [send(harness, Send(family=family, length=17)) for family in (1, 2, 5)]
    harness.turn()
    harness.turn()
    harness.abort([entries[1].handle])
    for _ in range(MAX_TURNS):
        if not harness.ledger.num_live:
            break
        harness.turn()
        harness.clock.advance(LONG_S)
    live = harness.ledger.live
    expect(not live, LATE_LOADS, "{} wait {} s for a load", live, MAX_TURNS * LONG_S)
    _pass_time(harness, MAX_TURNS)
    send(harness, Send(family=1, length=17))
    send(harness, Send(family=4, length=17))
    _pass_time(harness, SOON)
    live = harness.ledger.live
    expect(not live, LATE_LOADS, "{} came long after a load that does not end, and wait", live)


def _pass_time(harness: SchedulerHarness, turns: int) -> None:
    for _ in range(turns):
        harness.turn()
        harness.clock.advance(1.0)


def _compete(harness: SchedulerHarness) -> None:
    """Use all blocks for other requests while the late loads arrive."""
    for family in range(10, 16):
        send(harness, Send(family=family, length=20, max_tokens=8))
    harness.drain()


def _load_again(harness: SchedulerHarness) -> None:
    entry = send(harness, Send(family=3, length=17))
    harness.drain()
    expect(entry.num_cached, LATE_LOADS, "no load is tried after the late ones ended")
