"""Prefix cache scenarios of the scheduler suite: prompts that must be found again. Test process."""

from __future__ import annotations

import dataclasses
from typing import Any

from tenonry_kvcache import KVCacheManager
from tenonry_testkit.fakes.tokens import RECURRENT
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rules import CACHE_IS_PRIVATE, COUNTS, FINDS_PREFIXES, KEEPS_THE_RECENT, expect
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

# Prompts that are computed in the same steps, and tokens of a step: all fit, or the last one starts with a part.
TOGETHER: tuple[tuple[tuple[int, ...], int], ...] = (
    ((9, 9), 256),
    (tuple(range(3, 21)), 256),
    *(((3, second, last), 16) for second in (10, 11, 12) for last in (5, 6, 7, 9, 10, 11, 12)),
)
STATES = (0, RECURRENT)


def found_after_running_together(
    make_harness: MakeHarness, name: str, change: dict[str, Any]
) -> None:
    """Rows fill blocks in the same steps, and end in different ones; afterwards each prompt and answer is found."""
    for lengths, budget in TOGETHER:
        spec = HarnessSpec(
            max_num_seqs=len(lengths),
            max_num_batched_tokens=budget,
            max_model_len=48,
            num_blocks=1200,
        )
        harness = make_harness(dataclasses.replace(spec, **change))
        size = harness.spec.block_size
        entries = [
            send(harness, Send(family=number, length=length, max_tokens=3 + number % 7))
            for number, length in enumerate(lengths, 3)
        ]
        harness.drain()
        for entry in entries:
            repeated = _continued(harness, entry)
            least = (repeated.num_before - 2) // size * size
            cached = repeated.num_cached or 0
            detail = "{}: {} of {} tokens, computed together with {} others"
            others = len(lengths) - 1
            expect(cached >= least, FINDS_PREFIXES, detail, name, cached, least, others)


def _continued(harness: SchedulerHarness, entry: Entry) -> Entry:
    """Run the prompt of a request with its answer, and one token more."""
    prompt = entry.request.source.prompt_token_ids.tolist()
    found = harness.add([*prompt, *entry.expected.token_ids, 1], 1)
    harness.drain()
    return found


def found_where_prompts_diverge(
    make_harness: MakeHarness, name: str, change: dict[str, Any]
) -> None:
    """Three prompts with one beginning: the third finds it, after the second has shown where they part."""
    spec = HarnessSpec(max_model_len=48, num_blocks=60)
    for common in (8, 14):
        harness = make_harness(dataclasses.replace(spec, **change))
        entries = []
        for number in range(3):
            head = range(1, common + 1)
            entries.append(harness.add([*head, *(40 + 3 * number + i for i in range(9))], 2))
            harness.drain()
        size = harness.spec.block_size
        least, cached = common // size * size, entries[2].num_cached or 0
        detail = "{}: {} of {} tokens in which three prompts agree"
        expect(cached >= least, FINDS_PREFIXES, detail, name, cached, least)


def recent_prompts_stay(make_harness: MakeHarness) -> None:
    """In a pool for two prompts, the one that was used last stays when a third arrives; so with slots for states."""
    states = {"windows": STATES, "num_state_slots": 2, "num_blocks": 60}
    for change, length in (({"num_blocks": 13}, 22), (states, 6)):
        for depth in (1, 2):
            spec = HarnessSpec(depth=depth, max_num_seqs=1, max_num_batched_tokens=24)
            harness = make_harness(dataclasses.replace(spec, **change))
            for family in (1, 2, 1, 3, 1):
                entry = send(harness, Send(family=family, length=length, max_tokens=1))
                harness.drain()
            least, cached = (length - 1) // 4 * 4, entry.num_cached or 0
            detail = "{}: {} of {} tokens of the prompt that was used last but one"
            expect(cached >= least, KEEPS_THE_RECENT, detail, harness.spec, cached, least)


def suspects_are_forgotten(make_harness: MakeHarness) -> None:
    """A row fails that found the blocks of a running one; a later request does not find them, while both go on."""
    ask = Send(family=1, length=17, max_tokens=12)
    for depth in (1, 2, 3):
        for company in (0, 2):
            harness = make_harness(HarnessSpec(depth=depth, num_blocks=60, max_num_seqs=6))
            for number in range(company):
                send(harness, Send(family=5 + number, length=7, max_tokens=20))
            owner = send(harness, ask)
            while not owner.token_ids and harness.turn():
                pass
            broken = send(harness, ask)
            harness.fail(broken)
            while broken.is_live and harness.turn():
                pass
            if owner.is_live and broken.num_cached:
                later = send(harness, ask)
                harness.turn()
                harness.drain()
                detail = "{} finds {} tokens that a failed row had found"
                is_safe = not later.num_cached
                expect(is_safe, CACHE_IS_PRIVATE, detail, later, later.num_cached)
            else:
                harness.drain()


def windows_suffice(make_harness: MakeHarness) -> None:
    """A prompt is found as far as no other request has its blocks; of groups with windows, those in the last one."""
    for windows, num_blocks in (((5,), 10), ((6,), 12), ((9,), 12), ((0, 6), 22)):
        for num_others in range(1, 6):
            spec = HarnessSpec(
                windows=windows, num_blocks=num_blocks, max_num_batched_tokens=4, max_num_seqs=1
            )
            harness = make_harness(spec)
            ask = Send(family=1, length=26, max_tokens=1)
            first = send(harness, ask)
            tables: list[list[int]] = [[] for _ in windows]
            while first.is_live and harness.turn():
                tables = _tables(harness, first) or tables
            harness.drain()
            seen = len(harness.outputs)
            for number in range(num_others):
                send(harness, Send(family=2 + number, length=9, max_tokens=1))
                harness.drain()
            least = _least_found(spec, tables, _blocks_since(harness, seen))
            again = send(harness, ask)
            harness.drain()
            cached = again.num_cached or 0
            detail = "windows {}: {} tokens, though the blocks that {} tokens need still hold them"
            expect(cached >= least, FINDS_PREFIXES, detail, windows, cached, least)


def _least_found(spec: HarnessSpec, tables: list[list[int]], used: set[int]) -> int:
    """Longest prefix of 24 tokens of which each group has the blocks in the window of its next token."""
    size = spec.block_size
    for count in range(24 // size, 0, -1):
        needed = set()
        for window, table in zip(spec.windows, tables, strict=True):
            first = max(0, count * size - window + 1) // size if window else 0
            needed.update(table[first:count])
        if needed.isdisjoint(used):
            return count * size
    return 0


def _tables(harness: SchedulerHarness, entry: Entry) -> list[list[int]]:
    """Blocks that the steps have given to the row of a request, in order, by group."""
    stays = harness.step_checker.rows.values()
    return next(([list(ids) for ids in stay.blocks] for stay in stays if stay.entry is entry), [])


def _blocks_since(harness: SchedulerHarness, step: int) -> set[int]:
    """Blocks given to rows by the steps from a number on."""
    outputs = harness.outputs[step:]
    new = {
        int(block)
        for output in outputs
        for row in output.new
        for ids in row.block_ids
        for block in ids
    }
    return new | {int(block) for output in outputs for block in output.new_block_id}


def states_of_any_length(make_harness: MakeHarness) -> None:
    """With states, a repeated prompt of any length is found up to its last full block, whatever a step computes."""
    for budget, depth in ((5, 1), (16, 1), (16, 2)):
        spec = HarnessSpec(
            depth=depth,
            windows=STATES,
            num_state_slots=8,
            num_blocks=80,
            max_num_batched_tokens=budget,
        )
        harness = make_harness(spec)
        for length in range(5, 26):
            for _ in range(2):
                entry = send(harness, Send(family=length, length=length, max_tokens=1))
                harness.drain()
            least, cached = (length - 1) // 4 * 4, entry.num_cached or 0
            detail = "{} of {} tokens of a repeated prompt, {} tokens in a step"
            expect(cached >= least, FINDS_PREFIXES, detail, cached, least, budget)


def slots_come_back(make_harness: MakeHarness) -> None:
    """Requests with states run, alike and alone, fail and leave with steps in flight; afterwards a prompt is found."""
    for depth in (1, 2, 3):
        spec = HarnessSpec(
            depth=depth, windows=STATES, num_state_slots=3, num_blocks=60, max_model_len=48
        )
        harness = make_harness(spec)
        for number in range(8):
            entries = [
                send(harness, Send(family=2 + number, length=5 + number, max_tokens=14)),
                send(harness, Send(family=20 + number, length=4, max_tokens=9)),
                send(harness, Send(family=20 + number, length=4, max_tokens=9)),
            ]
            for _ in range(9 + number):
                harness.turn()
            if number % 3 == 1:
                harness.abort([entries[0].handle])
            if number % 3 == 2 and entries[0].is_live:
                harness.fail(entries[0])
        harness.drain()
        for _ in range(2):
            entry = send(harness, Send(family=1, length=21, max_tokens=1))
            harness.drain()
        cached = entry.num_cached or 0
        detail = "{} of 20 tokens after many other requests with {} steps in flight"
        expect(cached >= 20, FINDS_PREFIXES, detail, cached, depth)
        _snapshots_are_counted(harness)


def _snapshots_are_counted(harness: SchedulerHarness) -> None:
    """The statistics of the block manager of `tenonry-kvcache` have the number of snapshots."""
    if isinstance(getattr(harness.scheduler, "blocks", None), KVCacheManager):
        number = harness.scheduler.make_stats().extra.get("state_snapshots", 0)
        detail = "state_snapshots is {}, of {} slots, after a hit"
        fits = 1 <= number <= harness.spec.num_state_slots
        expect(fits, COUNTS, detail, number, harness.spec.num_state_slots)
