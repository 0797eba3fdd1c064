"""KV connector scenarios of the scheduler suite: loads that succeed or fail, faults, and kept blocks. Test process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from tenonry.errors import PluginError, PluginFault
from tenonry.outputs import FinishReason
from tenonry_testkit.fakes.connector import STORES, MemoryConnector, MemoryOptions
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import (
    BLOCK_NAMES,
    CACHE_IS_PRIVATE,
    KEPT_BLOCKS,
    LATE_LOADS,
    LOADS_COUNT,
    NAMES_ITS_CONNECTOR,
    expect,
)
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

STORE = "scheduler contract"
LONG = Send(family=1, length=17)
METHODS = ("match", "allocated", "build_metadata", "finished", "numbers")
MAX_TURNS = 700  # of a second each
IDLE_TURNS, IDLE_S = 100, 100.0


def names_are_the_same(make_harness: MakeHarness) -> None:
    """Two engines name the blocks of a prompt alike, and those of another salt otherwise."""
    spec = HarnessSpec(num_blocks=40)
    seen = []
    for salt in (None, None, "tenant"):
        with _store(make_harness, spec):
            harness, halves = _engine(make_harness, spec)
            entry = harness.add(range(17), 4, cache_salt=salt)
            harness.turn()
            if harness.transfer_log is None or not harness.transfer_log.was_asked:
                return
            names = [bytes(name) for name in halves[0].digests(entry.request, 4)]
            expect(len({*names}) == 4, BLOCK_NAMES, "4 blocks have the names {}", names)
            seen.append(names)
    expect(seen[0] == seen[1], BLOCK_NAMES, "another engine names the same blocks otherwise")
    is_private = not {*seen[0]} & {*seen[2]}
    expect(is_private, BLOCK_NAMES, "the names are the same with another cache_salt")


class Interrupted(BaseException):
    """Ends the program, not the connector in which it arrives."""


@contextlib.contextmanager
def _store(make_harness: MakeHarness, spec: HarnessSpec, *asks: Send) -> Iterator[None]:
    """A store with the blocks of some requests, which another engine has computed."""
    STORES.pop(STORE, None)
    try:
        filler = make_harness(spec, connectors=memory_connectors(spec, MemoryOptions(store=STORE)))
        for ask in asks:
            send(filler, ask)
        filler.drain()
        yield
    finally:
        STORES.pop(STORE, None)


def _engine(
    make_harness: MakeHarness, spec: HarnessSpec, **options: Any
) -> tuple[SchedulerHarness, tuple[MemoryConnector, MemoryConnector]]:
    halves = memory_connectors(spec, MemoryOptions(store=STORE, **options))
    return make_harness(spec, connectors=halves), halves


def loads_are_used(make_harness: MakeHarness, depth: int) -> None:
    """Loads of one and of several steps succeed, also after a match that is repeated; the request starts with them."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    hows: tuple[dict[str, Any], ...] = (
        {}, {"asynchronous": True}, {"asynchronous": True, "delay_polls": 4}, {"num_undecided": 2},
    )  # fmt: skip
    for how in hows:
        with _store(make_harness, spec, LONG):
            harness, halves = _engine(make_harness, spec, **how)
            other = send(harness, Send(family=2, length=9, max_tokens=20))
            harness.turn()
            entry = send(harness, LONG)
            harness.drain()
            if halves[0].num_promised:
                cached = entry.num_cached or 0
                detail = "{}: {} of 16 tokens are loaded"
                expect(cached >= 16, LOADS_COUNT, detail, how, cached)
                _expect_no_restart(other, how)


def a_load_without_end_is_given_up(make_harness: MakeHarness, depth: int) -> None:
    """Nothing but a load that does not end is under way: no other result makes the scheduler look at the time."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    with _store(make_harness, spec, LONG):
        harness, halves = _engine(make_harness, spec, asynchronous=True, delay_polls=10**9)
        entry = send(harness, LONG)
        _pass(harness, IDLE_TURNS, IDLE_S)
        expect(not entry.is_live, LATE_LOADS, "{} waits {} s", entry, IDLE_TURNS * IDLE_S)
        halves[1].hurry()
        harness.drain()


def aborted_loads_are_awaited(make_harness: MakeHarness, depth: int) -> None:
    """Abort a request alone during its load; the engine steps until the load has ended."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    with _store(make_harness, spec, LONG):
        harness, _ = _engine(make_harness, spec, asynchronous=True, delay_polls=6)
        entry = send(harness, LONG)
        harness.turn()
        harness.turn()
        harness.abort([entry.handle])
        log = harness.transfer_log
        while log is not None and log.transfers:
            busy = harness.scheduler.has_requests()
            detail = "has_requests() is False, while {}"
            expect(busy, KEPT_BLOCKS, detail, log.waits())
            harness.turn()
        harness.drain()


def loads_wait_for_blocks(make_harness: MakeHarness, depth: int) -> None:
    """Blocks for a load are missing while others run; it is promised no earlier than there are enough."""
    for is_asynchronous in (False, True):
        spec = HarnessSpec(depth=depth, num_blocks=9)
        with _store(make_harness, spec, LONG):
            harness, _ = _engine(make_harness, spec, asynchronous=is_asynchronous)
            send(harness, Send(family=2, length=20, max_tokens=6))
            harness.turn()
            entry = send(harness, LONG)
            harness.drain()
            how = entry.finished
            served = how is not None and how.reason is FinishReason.LENGTH
            expect(served, LOADS_COUNT, "{} waited for blocks, and ended with {}", entry, how)


def a_reset_reaches_waiting_rows(make_harness: MakeHarness, depth: int) -> None:
    """Reset the cache while a request with cached blocks waits for a load; it starts with none of them."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    with _store(make_harness, spec, LONG):
        harness, halves = _engine(make_harness, spec, asynchronous=True, delay_polls=4)
        send(harness, Send(family=1, length=9, max_tokens=1, prompt_logprobs=1))
        harness.drain()
        entry = send(harness, LONG)
        harness.turn()
        promised, is_waiting = halves[0].num_promised, entry.num_cached is None
        harness.reset_prefix_cache()
        harness.drain()
        is_new = not entry.num_cached or halves[0].num_promised > promised
        detail = "{} waited for a load, and starts with {} tokens from before a reset"
        expect(is_new or not is_waiting, CACHE_IS_PRIVATE, detail, entry, entry.num_cached)


def blocks_wait_for_both_transfers(make_harness: MakeHarness, depth: int) -> None:
    """A load ends after its request, and the save of its blocks later still; all blocks return, none too early."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    with _store(make_harness, spec, LONG):
        how = {"asynchronous": True, "delay_polls": 30, "holds_saves": True}
        harness, halves = _engine(make_harness, spec, **how)
        entry = send(harness, Send(family=1, length=25))
        for _ in range(IDLE_TURNS):
            if not entry.is_live:
                break
            _pass(harness, 1, IDLE_S)
        expect(not entry.is_live, LATE_LOADS, "{} waits {} s", entry, IDLE_TURNS * IDLE_S)
        log = harness.transfer_log
        while log is not None and any(transfer.tokens for transfer in log.transfers):
            harness.turn()
        for family in range(10, 18):
            send(harness, Send(family=family, length=20, max_tokens=9))
        _pass(harness, 3, 0.0)
        halves[1].hurry()
        harness.drain()


def failed_loads_cost_little(make_harness: MakeHarness, depth: int) -> None:
    """A load fails while others run and load, which found nothing in the prefix cache: they do not restart."""
    spec = HarnessSpec(depth=depth, num_blocks=60)
    for is_asynchronous in (False, True):
        with _store(make_harness, spec, LONG, Send(family=3, length=13)):
            how = {"asynchronous": is_asynchronous, "fail_loads": 1}
            harness, _ = _engine(make_harness, spec, **how)
            others = [send(harness, Send(family=2, length=9, max_tokens=20))]
            harness.turn()
            send(harness, LONG)
            harness.turn()
            others.append(send(harness, Send(family=3, length=13)))
            harness.drain()
            for entry in others:
                _expect_no_restart(entry, how)


def _expect_no_restart(entry: Any, how: dict[str, Any]) -> None:
    count = entry.finished.num_preemptions
    expect(not count, LOADS_COUNT, "{}: {} restarted {} times", how, entry, count)


def faults_name_the_connector(make_harness: MakeHarness, method: str) -> None:
    """Let a method of the connector raise; errors of the project's own and interrupts pass unchanged."""
    spec = HarnessSpec(num_blocks=40)
    for error in (KeyError("on purpose"), PluginError("on purpose"), Interrupted()):
        with _store(make_harness, spec, LONG):
            halves = memory_connectors(spec, MemoryOptions(store=STORE))
            calls: list[object] = []

            def fail(*args: object, error: BaseException = error, calls: Any = calls) -> None:
                calls.append(args)
                raise error

            setattr(halves[0], method, fail)
            raised: BaseException | None = None
            try:
                harness = make_harness(spec, connectors=halves)
                send(harness, LONG)
                send(harness, Send(family=2, length=9))
                harness.drain()
                harness.scheduler.make_stats()
            except (KeyError, PluginError, Interrupted) as caught:
                raised = caught
            if not calls:
                continue
            is_named = raised is error
            if isinstance(error, KeyError):
                is_named = (
                    isinstance(raised, PluginFault)
                    and raised.call == method
                    and MemoryConnector.__name__ in raised.plugin
                )
            detail = "{!r} in {} became {!r}"
            expect(is_named, NAMES_ITS_CONNECTOR, detail, error, method, raised)


def steps_are_no_time(make_harness: MakeHarness, depth: int) -> None:
    """Many steps in little time, and one long pause, are no fault of a connector that keeps blocks meanwhile."""
    spec = HarnessSpec(depth=depth, num_blocks=40)
    with _store(make_harness, spec):
        harness, _ = _engine(make_harness, spec, holds_saves=True)
        harness.clock.advance(IDLE_S)
        for number, (turns, seconds) in enumerate(((400, 0.01), (1, 1000.0), (1, 0.0)), 1):
            send(harness, Send(family=number, length=8, max_tokens=1))
            _pass(harness, turns, seconds)
            while harness.ledger.num_live:
                harness.turn()
            log = harness.transfer_log
            num_kept = len(log.transfers) if log is not None and log.was_asked else number
            detail = "it keeps blocks of {} requests of {}, though it was never late"
            expect(num_kept == number, KEPT_BLOCKS, detail, num_kept, number)


def blocks_are_kept(make_harness: MakeHarness, depth: int) -> None:
    """A connector keeps four blocks for ever: exactly a longest sequence fits beside them, or not quite."""
    for spare in (4, 3):
        least = HarnessSpec().least_blocks()
        spec = HarnessSpec(depth=depth, max_num_batched_tokens=12, num_blocks=least + spare)
        with _store(make_harness, spec):
            harness, halves = _engine(make_harness, spec, holds_saves=True)
            send(harness, Send(family=1, length=16, max_tokens=1))
            while harness.ledger.num_live:
                harness.turn()
            if harness.transfer_log is None or not harness.transfer_log.transfers:
                continue
            _idle(harness)
            _pass(harness, MAX_TURNS)
            if spare == 4:
                _is_left_out(harness)
                _serve_longest(harness)
                _is_used_again(harness, halves)
            else:
                _expect_fault(harness)


def _idle(harness: SchedulerHarness) -> None:
    """Nothing but the kept blocks is left: the engine goes on stepping for a bounded time."""
    _pass(harness, 4, 0.0)  # the worker removes the row
    busy = harness.scheduler.has_requests()
    expect(
        busy, KEPT_BLOCKS, "has_requests() is False: no step would learn that the blocks are free"
    )
    for _ in range(IDLE_TURNS):
        harness.turn()
        harness.clock.advance(IDLE_S)
    busy = harness.scheduler.has_requests()
    detail = "has_requests() is True {} s after the last request"
    expect(not busy, KEPT_BLOCKS, detail, IDLE_TURNS * IDLE_S)


def _pass(harness: SchedulerHarness, turns: int, seconds: float = 1.0) -> None:
    for _ in range(turns):
        harness.turn()
        harness.clock.advance(seconds)


def _is_left_out(harness: SchedulerHarness) -> None:
    """A request that ends after the time limit keeps no further blocks."""
    assert harness.transfer_log is not None
    send(harness, Send(family=2, length=8, max_tokens=1))
    _pass(harness, 10)
    num_kept = len(harness.transfer_log.transfers)
    expect(num_kept == 1, KEPT_BLOCKS, "after the time limit it keeps blocks of {}", num_kept)


def _serve_longest(harness: SchedulerHarness) -> None:
    entry = send(harness, Send(family=4, length=28, max_tokens=9))
    _pass(harness, MAX_TURNS)
    expect(not entry.is_live, KEPT_BLOCKS, "{} waits, though enough blocks are left", entry)


def _is_used_again(
    harness: SchedulerHarness, halves: tuple[MemoryConnector, MemoryConnector]
) -> None:
    """It returns the blocks: requests use it again, and all blocks are free."""
    halves[1].hurry()
    harness.drain()
    harness.reset_prefix_cache()
    promised = halves[0].num_promised
    send(harness, Send(family=1, length=17))
    harness.drain()
    is_asked = halves[0].num_promised > promised
    expect(is_asked, KEPT_BLOCKS, "it has returned its blocks, and is not asked for others")


def _expect_fault(harness: SchedulerHarness) -> None:
    """No longest sequence fits any more: the engine ends."""
    try:
        entry = send(harness, Send(family=4, length=28, max_tokens=9))
        _pass(harness, MAX_TURNS)
    except PluginFault as fault:
        is_named = MemoryConnector.__name__ in fault.plugin
        expect(is_named, KEPT_BLOCKS, "the error names {}", fault.plugin)
        return
    detail = "{}; {} blocks are too few, and no error names the connector"
    expect(False, KEPT_BLOCKS, detail, entry, harness.spec.num_blocks - 4)
