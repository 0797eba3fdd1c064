"""Statistics scenarios of the scheduler suite, compared with the harness. Test process."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tenonry.stats import SchedulerStats
from tenonry.step import Adapter
from tenonry_testkit.fakes.connector import STORES, MemoryConnector, MemoryOptions
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.rules import COUNTS, expect
from tenonry_testkit.scenarios_blocks import memory_connectors
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Op, Send, Turn, play

COUNTERS = (
    "prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "num_steps",
    "external_prefix_cache_queries", "external_prefix_cache_hits",
    "num_drafts", "num_draft_tokens", "num_accepted_tokens",
)  # fmt: skip
RUNNING, WAITING = "lora_requests_running:", "lora_requests_waiting:"
STORE = "scheduler contract"
# Requests that outgrow the pool together, and one that shares the prompt of another.
OUTGROWS: list[Op] = [
    *(Send(family=number, length=8, max_tokens=24) for number in range(4)),
    Turn(9),
    Send(family=1, length=12, max_tokens=2),
]
# Requests with adapters that arrive, share steps and are preempted.
ADAPTED: list[Op] = [
    *(
        Send(family=number, length=8, max_tokens=16, adapter=Adapter("a", "1"))
        for number in range(2)
    ),
    *(
        Send(family=number, length=8, max_tokens=9, adapter=Adapter("b", "1"))
        for number in range(3)
    ),
    Turn(4),
    Send(family=1, length=12, max_tokens=2, adapter=Adapter("a", "1")),
]


class Numbers:
    """Sums of one scheduler's counters; each `take` adds the numbers since the previous call."""

    def __init__(self, harness: SchedulerHarness) -> None:
        self._harness = harness
        self.sums: Counter[str] = Counter()

    def take(self) -> SchedulerStats:
        """Add the numbers since the last call. Raises RuleBroken for a state different from the harness's."""
        stats = self._harness.scheduler.make_stats()
        for name in COUNTERS:
            number = getattr(stats, name)
            expect(number >= 0, COUNTS, "{} is {}", name, number)
            self.sums[name] += number
        self._check_usage(stats)
        self._check_adapters(stats)
        connector, log = self._harness.connector, self._harness.transfer_log
        is_used = connector is not None and log is not None and log.was_asked
        numbers = connector.numbers() if connector is not None and is_used else {}
        is_passed = numbers.items() <= stats.extra.items()
        expect(is_passed, COUNTS, "extra lacks numbers of the KV connector: {}", numbers)
        return stats

    def _check_usage(self, stats: SchedulerStats) -> None:
        """Blocks of rows are in use; those behind a sliding window need not be."""
        kinds = {group.kind for group in self._harness.kv_cache.groups}
        if kinds != {"full"}:
            return
        rows = self._harness.step_checker.rows.items()
        stays = [stay for row, stay in rows if stay.entry.is_live and stay.entry.request.row == row]
        held = {block for stay in stays for block in stay.blocks[0]}
        least = len(held) / self._harness.kv_cache.num_blocks
        usage = stats.kv_cache_usage
        expect(least - 1e-9 <= usage <= 1, COUNTS, "kv_cache_usage {}, rows hold {}", usage, least)

    def _check_adapters(self, stats: SchedulerStats) -> None:
        """Check a scheduler that counts the requests of each adapter."""
        running: Counter[str] = Counter()
        live: Counter[str] = Counter()
        for entry in self._harness.ledger.live:
            adapter = entry.request.source.adapter
            if adapter is not None:
                live[adapter.name] += 1
                running[adapter.name] += entry.request.row >= 0
        for name, number in stats.extra.items():
            if name.startswith(RUNNING):
                wanted = running[name.removeprefix(RUNNING)]
            elif name.startswith(WAITING):
                wanted = live[name.removeprefix(WAITING)] - running[name.removeprefix(WAITING)]
            else:
                continue
            expect(number == wanted, COUNTS, "{} is {}, expected {}", name, number, wanted)
        counted = {name for name in stats.extra if name.startswith((RUNNING, WAITING))}
        missing = {prefix + name for prefix in (RUNNING, WAITING) for name in live} - counted
        expect(not counted or not missing, COUNTS, "{} are not among {}", missing, counted)


def numbers_add_up(
    make_harness: MakeHarness, spec: HarnessSpec, waves: Sequence[Sequence[Op]], **parts: Any
) -> None:
    """Play the waves without aborts, each to its end; compare the sums after each."""
    harness = make_harness(spec, **parts)
    numbers = Numbers(harness)
    for ops in waves:
        play(harness, ops)
        for _ in range(harness.max_steps_left()):
            if not harness.turn():
                break
            if not _may_fail(harness):  # later, and is in the numbers of the previous call
                numbers.take()
        numbers.take()
        compare(harness, numbers.sums)
        quiet = harness.scheduler.make_stats()
        left = {name: getattr(quiet, name) for name in COUNTERS if getattr(quiet, name)}
        expect(not left, COUNTS, "nothing has happened since the last call, but it counts {}", left)
    harness.drain()


def _may_fail(harness: SchedulerHarness) -> bool:
    connector = harness.connector
    return isinstance(connector, MemoryConnector) and connector.options.fail_loads > 0


def compare(harness: SchedulerHarness, sums: Counter[str]) -> None:
    """Raise RuleBroken unless the sums equal those of the steps, outcomes and results of the harness."""
    entries = harness.ledger.entries.values()
    started = [entry for entry in entries if entry.num_cached is not None]
    hits = sums["prefix_cache_hits"] + sums["external_prefix_cache_hits"]
    external = sums["external_prefix_cache_queries"]
    wanted = {"num_steps": len(harness.outputs), **harness.step_checker.drafts}
    for name, number in wanted.items():
        expect(sums[name] == number, COUNTS, "{} adds up to {} of {}", name, sums[name], number)
    cached = sum(entry.num_cached or 0 for entry in started)
    unseen = check_preemptions(harness, sums["num_preemptions"])
    # Preemptions absent from steps have looked up their tokens once more.
    most = sum(entry.num_before * (1 + unseen) for entry in started)
    fits = hits >= cached if unseen else hits == cached
    expect(fits, COUNTS, "{} hits, but requests started with {} tokens", hits, cached)
    queries = sums["prefix_cache_queries"]
    is_due = harness.config.enable_prefix_caching or not queries
    expect(is_due, COUNTS, "{} tokens looked up, with prefix caching off", queries)
    expect(queries <= most, COUNTS, "{} tokens looked up, requests have {}", queries, most)
    beyond = most - sums["prefix_cache_hits"]
    detail = "{} tokens looked up outside, but {} were not found in the prefix cache"
    expect(external <= beyond, COUNTS, detail, external, beyond)
    loaded = sums["external_prefix_cache_hits"]
    detail = "{} tokens come from the KV connector, {} were looked up there"
    expect(loaded <= external, COUNTS, detail, loaded, external)
    expect(harness.connector or not external, COUNTS, "{} lookups without a connector", external)


def check_preemptions(harness: SchedulerHarness, number: int) -> int:
    """Raise RuleBroken unless steps and outcomes imply this number of preemptions; returns those absent from steps.

    A row that waited for a KV load may be preempted before any step has it.
    """
    seen = harness.step_checker.num_preemptions
    entries = harness.ledger.entries.values()
    named = sum(each.finished.num_preemptions for each in entries if each.finished is not None)
    fits = seen == number if harness.connector is None else seen <= number
    expect(fits, COUNTS, "num_preemptions adds up to {} of {}", number, seen)
    expect(
        named == number, COUNTS, "the outcomes of requests name {} preemptions of {}", named, number
    )
    return number - seen


def loads_add_up(
    make_harness: MakeHarness,
    waves: Sequence[Sequence[Op]],
    block_size: int = 4,
    config: tuple[tuple[str, Any], ...] = (),
    **how: Any,
) -> None:
    """Fill a store by one engine and count its loads by a second one; `how`: further connector options."""
    spec = HarnessSpec(
        num_blocks=96 // block_size, block_size=block_size, max_num_batched_tokens=12, config=config
    )
    STORES.pop(STORE, None)
    try:
        for _ in range(2):
            connectors = memory_connectors(spec, MemoryOptions(store=STORE, **how))
            numbers_add_up(make_harness, spec, waves, connectors=connectors)
    finally:
        STORES.pop(STORE, None)


def drafts_add_up(make_harness: MakeHarness, waves: Sequence[Sequence[Op]]) -> None:
    """Run multi-token steps with drafts of the worker."""
    spec = HarnessSpec(round_tokens=6, num_blocks=40, config=(("drafter", "ngram"),))
    for short in (0, 3):
        numbers_add_up(make_harness, dataclasses.replace(spec, short_rounds=short), waves)
