"""Scenarios of the scheduler suite about the length of multi-token steps, by the time that tokens take. Test process.

The steps are those of the library, as `docs/explanation/steps.md` describes; a scheduler without it chooses its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tenonry_scheduling import BaseScheduler
from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rules import ROUND_LENGTH, expect
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

MOST = 6
SPEC = HarnessSpec(round_tokens=MOST, max_num_seqs=2, max_model_len=160, num_blocks=90)
DRAFTED = (("drafter", "ngram"),)
SLOW_S, QUICK_S = 0.1, 1e-5
# Seconds that a token takes, and how many take at most 5 ms more than one.
LENGTHS = (
    (QUICK_S, MOST),
    (0.0008, MOST),
    (0.0012, 5),
    (0.0018, 3),
    (0.0026, 2),
    (0.006, 1),
    (1.0, 1),
)
SOON = 24  # steps, in which a mean with a weight of one fifth has left its old value


def rounds_have_their_length(make_harness: MakeHarness) -> None:
    """Check steps of several tokens for every time per token, for more rows, after prompts, and when times change."""
    if not isinstance(make_harness(SPEC).scheduler, BaseScheduler):
        return
    for token_s, length in LENGTHS:
        harness = make_harness(SPEC)
        entry = _started(harness, max_tokens=40)
        _expect(harness, _step(harness, token_s), 1, "the first step, which measures")
        while entry.is_live:
            wanted = min(length, _num_left(entry))
            _expect(harness, _step(harness, token_s), wanted, f"{token_s} s per token")
        harness.drain()
    pairs = make_harness(dataclasses.replace(SPEC, round_tokens=2))
    _started(pairs, max_tokens=9)
    _step(pairs, QUICK_S)
    _expect(pairs, _step(pairs, QUICK_S), 2, "max_round_tokens is 2")
    pairs.drain()
    _windows(make_harness)
    _more_rows(make_harness(SPEC))
    _other_times(make_harness(SPEC))
    _prompts_between(make_harness(SPEC))
    _some_wait(make_harness(SPEC))
    for config in ((), DRAFTED):
        _log_probabilities(make_harness(dataclasses.replace(SPEC, config=config)), config)


def _started(harness: SchedulerHarness, **fields: Any) -> Entry:
    """A request whose prompt is computed, in one slow step: a single token is in no later one."""
    entry = send(harness, Send(length=1, **fields))
    while entry.is_live and not entry.token_ids:
        _step(harness, 1.0)
    return entry


def _step(harness: SchedulerHarness, token_s: float) -> int:
    """Run a step that takes so long for each of its tokens; returns its length."""
    harness.launch()
    length = harness.outputs[-1].round_tokens
    harness.clock.advance(token_s * length)
    if harness.in_flight:
        harness.deliver()
    return length


def _num_left(entry: Entry) -> int:
    return entry.limit - entry.num_before - len(entry.token_ids)


def _expect(harness: SchedulerHarness, found: int, wanted: int, when: str) -> None:
    detail = "step {} has {} tokens of each row, not {}: {}"
    step_id = harness.outputs[-1].step_id
    expect(found == wanted, ROUND_LENGTH, detail, step_id, found, wanted, when)


def _more_rows(harness: SchedulerHarness) -> None:
    """The first step with more rows is a single one; with fewer, it is measured already."""
    _started(harness, max_tokens=90)
    _step(harness, 0.0012)
    _expect(harness, _step(harness, 0.0012), 5, "one row")
    _started(harness, family=1, max_tokens=12)
    if harness.ledger.num_live > 1:  # or it has started after the other one
        _expect(harness, _step(harness, 0.0026), 1, "the first step of two rows")
        _expect(harness, _step(harness, 0.0026), 2, "two rows")
        while harness.ledger.num_live > 1:
            _step(harness, 0.0026)
        _expect(harness, _step(harness, 0.0026), 2, "one row is left of two")
    harness.drain()


def _other_times(harness: SchedulerHarness) -> None:
    """After one slow step the next are single ones; after enough quick ones they are as long as can be."""
    entry = _started(harness, max_tokens=140)
    _step(harness, QUICK_S)
    _expect(harness, _step(harness, SLOW_S), MOST, "quick so far")
    _expect(harness, _step(harness, QUICK_S), 1, "the last step was slow")
    lengths = [_step(harness, QUICK_S) for _ in range(SOON)]
    _expect(harness, lengths[0], 1, "one quick step after a slow one")
    _expect(harness, lengths[-1], MOST, f"the last {SOON} steps were quick")
    detail = "quick steps become shorter: {}"
    expect(lengths == sorted(lengths), ROUND_LENGTH, detail, lengths)
    expect(entry.is_live, ROUND_LENGTH, "{} ended early", entry)
    harness.drain()


def _prompts_between(harness: SchedulerHarness) -> None:
    """The time of a step with a prompt says nothing about decodes."""
    entry = _started(harness, max_tokens=60)
    for _ in range(2):
        _step(harness, QUICK_S)
    for number in range(3):
        _started(harness, family=1 + number, max_tokens=1)
        if entry.is_live:
            _expect(harness, _step(harness, QUICK_S), MOST, "after a slow prompt")
    harness.drain()


def _some_wait(harness: SchedulerHarness) -> None:
    """While a request waits, steps are single ones: it starts when a row is free."""
    entries = [send(harness, Send(family=number, max_tokens=12)) for number in range(3)]
    while all(entry.is_live for entry in entries):
        _expect(harness, _step(harness, QUICK_S), 1, "a request waits")
    harness.drain()


def _windows(make_harness: MakeHarness) -> None:
    """A step of several tokens writes no block that its first token reads, however few there are."""
    for more in range(0, 12, 2):
        spec = dataclasses.replace(SPEC, windows=(5,), block_size=1, max_model_len=48, num_blocks=0)
        harness = make_harness(dataclasses.replace(spec, num_blocks=spec.least_blocks() + more))
        for number in range(2):
            send(harness, Send(family=number, length=1, max_tokens=30 + number))
        harness.drain()


def _log_probabilities(harness: SchedulerHarness, config: object) -> None:
    """Rows with log-probabilities run several tokens in a step only where tokens are drafted."""
    entry = _started(harness, max_tokens=30, logprobs=1)
    while entry.is_live:
        wanted = min(MOST, _num_left(entry)) if config else 1
        _expect(harness, _step(harness, 1.0 if config else QUICK_S), wanted, f"{config}, logprobs")
    harness.drain()
