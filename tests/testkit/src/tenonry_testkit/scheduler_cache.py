"""Prefix cache tests of the scheduler suite. Test process."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import hypothesis.strategies as st

from tenonry.errors import ConfigError
from tenonry.stats import SchedulerStats
from tenonry_testkit.fakes.connector import STORES, MemoryOptions
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import COUNTS, FINDS_PREFIXES, expect
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_cache import (
    found_after_running_together,
    found_where_prompts_diverge,
    recent_prompts_stay,
    slots_come_back,
    states_of_any_length,
    suspects_are_forgotten,
    windows_suffice,
)
from tenonry_testkit.scenarios_endings import MakeHarness, play_out
from tenonry_testkit.scenarios_numbers import OUTGROWS
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Op, Send, Turn, play, send, sends, storms

ROOMY = HarnessSpec(num_blocks=60, max_model_len=48)
# Engines in which a caching scheduler finds a repeated prompt: groups, snapshots, depth, block size.
PLACES: dict[str, dict[str, Any]] = {
    "plain": {},
    "two steps in flight": {"depth": 2},
    "three steps in flight": {"depth": 3},
    "one token per block": {"block_size": 1},
    "two groups": {"windows": (0, 0)},
    "a window": {"windows": (0, 6)},
    "windows only": {"windows": (5,)},
    "windows in flight": {"windows": (0, 4, 9), "depth": 2},
    "states": {"windows": (0, RECURRENT), "num_state_slots": 8},  # minimum for the prompt
    "states in flight": {"windows": (0, RECURRENT), "num_state_slots": 8, "depth": 2},
    "states in three steps": {"windows": (0, RECURRENT), "num_state_slots": 8, "depth": 3},
}
UNMOVABLE = ((0, RECURRENT), (0, 6), (5,), (0, 0))


# Those whose rows share what they compute while they run, block by block.
GROWING = (
    "plain",
    "two steps in flight",
    "three steps in flight",
    "one token per block",
    "a window",
)
# Those in which many rows run together.
TOGETHER = ("plain", "one token per block", "windows in flight")


class _Engines(Protocol):
    """Any suite with engines around the scheduler under test."""

    caches_prefixes: ClassVar[bool | None]

    def harness(self, spec: HarnessSpec = ..., **parts: Any) -> SchedulerHarness:
        """Return a fresh engine."""
        ...

    def _search(self, strategy: Any, check: Any, examples: int = 12) -> None: ...


class CacheSuite:
    """Part of `SchedulerContract`. `caches_prefixes`: True requires hits of a repeated prompt; None requires them
    everywhere if the plainest engine has them.
    """

    caches_prefixes: ClassVar[bool | None] = None

    def test_a_repeated_prompt_is_found(self: _Engines) -> None:
        """A scheduler that caches prefixes does so at every depth and for every kind of layer, outputs included."""
        found = {name: _found(self.harness, change) for name, change in PLACES.items()}
        for name in GROWING:
            found_of = [_found_of_running(self.harness, PLACES[name], n) for n in (1, 2, 3)]
            shared = min(found_of) >= min(found_of[0], 16)
            expect(shared, FINDS_PREFIXES, "{}: {} of one of 1, 2, 3 rows", name, found_of)
        if self.caches_prefixes or (self.caches_prefixes is None and any(found["plain"])):
            for name, (short, beside, together, repeated, continued) in found.items():
                expect(short >= 4, FINDS_PREFIXES, "{}: {} of the first block", name, short)
                shared = together >= min(12, found["plain"][2])
                expect(shared, FINDS_PREFIXES, "{}: {} of a prompt that came first", name, together)
                expect(beside >= 12, FINDS_PREFIXES, "{}: {} of a row that runs", name, beside)
                least = 20 if "states" in name else 24
                expect(repeated >= 20, FINDS_PREFIXES, "{}: {} of 20 tokens", name, repeated)
                expect(continued >= least, FINDS_PREFIXES, "{}: {} of {}", name, continued, least)
            for name in ("states in flight", "states in three steps"):
                more, alone = found[name][4], found["states"][4]
                detail = "{}: {} of an answer, {} with one step in flight"
                expect(more >= alone, FINDS_PREFIXES, detail, name, more, alone)

    def test_prompts_that_ran_together_are_found(self: _Engines) -> None:
        """Rows that fill blocks in the same steps, and prompts with a common beginning, are all found later."""
        if self.caches_prefixes or (self.caches_prefixes is None and _caches(self.harness)):
            for name, change in PLACES.items():
                found_where_prompts_diverge(self.harness, name, change)
                if name in TOGETHER:
                    found_after_running_together(self.harness, name, change)
            slots_come_back(self.harness)
            states_of_any_length(self.harness)
            windows_suffice(self.harness)

    def test_the_prefix_cache_keeps_what_was_used_last(self: _Engines) -> None:
        """If `caches_prefixes` is True, what was used long ago leaves first, and what a failed row found leaves."""
        if self.caches_prefixes:
            recent_prompts_stay(self.harness)
            suspects_are_forgotten(self.harness)

    def test_hits_are_those_that_requests_start_with(self: _Engines) -> None:
        """The statistics and the requests' first events name the same cached tokens, and no preemption is lost."""
        for depth in (1, 2):
            hits_add_up(self.harness, depth, OUTGROWS)
        program = storms(sends(families=2, max_length=28), aborts=True)
        self._search(
            st.tuples(st.integers(1, 3), program),
            lambda drawn: hits_add_up(self.harness, *drawn),
            8,
        )

    def test_a_kv_connector_suits_the_model(self: _Engines) -> None:
        """If a sequence has more than the blocks of one table, a connector is rejected, or changes no token."""
        for windows in UNMOVABLE:
            spec = dataclasses.replace(ROOMY, windows=windows, num_state_slots=4)
            options = MemoryOptions(store="scheduler contract")
            STORES.pop(options.store, None)
            ops = [Send(family=1, length=21), Turn(4), Send(family=1, length=25), Turn(2)]
            try:
                for _ in range(2):
                    play_out(self.harness(spec, connectors=memory_connectors(spec, options)), ops)
            except ConfigError:
                continue
            finally:
                STORES.pop(options.store, None)


def _caches(make_harness: MakeHarness) -> bool:
    """Return True if the plainest engine finds a repeated prompt."""
    return _found(make_harness, {})[3] > 0


def _found(make_harness: MakeHarness, change: dict[str, Any]) -> tuple[int, ...]:
    """Cached tokens of a short prompt, of one computed by another row, of one in the same step, of an earlier one, and
    of the continuation of its answer.
    """
    harness = make_harness(dataclasses.replace(ROOMY, **change))
    for _ in range(2):
        short = send(harness, Send(family=2, length=5, max_tokens=1))
        harness.drain()
    send(harness, Send(family=3, length=13, max_tokens=12))
    play(harness, [Turn(8)])
    beside = send(harness, Send(family=3, length=13, max_tokens=2))
    harness.drain()
    alike = [send(harness, Send(family=4, length=13, max_tokens=2)) for _ in range(2)]
    harness.drain()
    first = send(harness, Send(family=1, length=21, max_tokens=6))
    harness.drain()
    repeated = send(harness, Send(family=1, length=21, max_tokens=6))
    harness.drain()
    prompt = [*first.request.source.prompt_token_ids.tolist(), *first.expected.token_ids]
    continued = harness.add([*prompt, 1], 2)
    harness.drain()
    return tuple(entry.num_cached or 0 for entry in (short, beside, alike[1], repeated, continued))


def _found_of_running(make_harness: MakeHarness, change: dict[str, Any], num_rows: int) -> int:
    """Cached tokens of a prompt that continues the answer of the last of some rows that still run.

    It comes when the row knows exactly 16 tokens, whole blocks.
    """
    harness = make_harness(dataclasses.replace(ROOMY, **change, num_blocks=240))
    rows = [send(harness, Send(family=5 + n, length=9 + n, max_tokens=20)) for n in range(num_rows)]
    last = rows[-1]
    num_output = 16 - last.num_prompt
    while len(last.token_ids) < num_output and harness.turn():
        pass
    prompt = last.request.source.prompt_token_ids.tolist()
    found = harness.add([*prompt, *last.expected.token_ids[:num_output], 1], 1)
    harness.drain()
    return found.num_cached or 0


def hits_add_up(make_harness: MakeHarness, depth: int, ops: Sequence[Op]) -> None:
    """Run the operations to their end, and compare the counters with requests and steps."""
    harness = make_harness(HarnessSpec(depth=depth, num_blocks=14))
    stats = _compare_hits(harness, ops)
    started = [new.handle for output in harness.outputs for new in output.new]
    again = len(started) - len(set(started))
    expect(
        stats.num_preemptions >= again,
        COUNTS,
        "{} preemptions, but {} rows restarted",
        stats.num_preemptions,
        again,
    )


def _compare_hits(harness: SchedulerHarness, ops: Sequence[Op]) -> SchedulerStats:
    """Run the operations to their end; returns the statistics since the start."""
    play(harness, ops)
    for _ in range(harness.max_steps_left()):
        if not harness.turn():
            break
    stats = harness.scheduler.make_stats()  # before the end of `drain` reads them
    harness.drain()
    cached = sum(entry.num_cached or 0 for entry in harness.ledger.entries.values())
    hits = stats.prefix_cache_hits + stats.external_prefix_cache_hits
    expect(hits == cached, COUNTS, "{} hits, but requests started with {} tokens", hits, cached)
    looked_up = stats.external_prefix_cache_queries >= stats.external_prefix_cache_hits
    expect(
        looked_up, COUNTS, "more tokens come from the KV connector than were asked for: {}", stats
    )
    return stats
