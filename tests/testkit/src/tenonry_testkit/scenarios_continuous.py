"""Scenario of the scheduler suite: continuous batching starts what fits, in the next step. Test process."""

from __future__ import annotations

from tenonry_testkit.harness import SchedulerHarness
from tenonry_testkit.ledger import Entry
from tenonry_testkit.rules import STARTS_BESIDE, expect
from tenonry_testkit.scenarios_endings import MakeHarness
from tenonry_testkit.spec import HarnessSpec
from tenonry_testkit.traffic import Send, send

SEQS = 8
NEVER = 10**9


def requests_start_beside_others(make_harness: MakeHarness, depth: int) -> None:
    """Fill an empty engine, then the rest of its rows, in a step each; every row that becomes free is used again."""
    spec = HarnessSpec(
        depth=depth, max_num_seqs=SEQS, max_num_batched_tokens=64, max_model_len=48, num_blocks=96
    )
    harness = make_harness(spec)
    rows = [_send(harness, number) for number in range(3)]
    _expect_start(harness, rows, "in an empty engine")
    while not all(entry.token_ids for entry in rows) and harness.turn():
        pass
    later = [_send(harness, number) for number in range(3, SEQS)]
    _expect_start(harness, later, "in the last free rows")
    queued = [_send(harness, number) for number in range(SEQS, 2 * SEQS)]
    while any(entry.handle not in harness.step_checker.first_run for entry in queued):
        free = SEQS - harness.scheduler.get_request_counts()[0]
        if not harness.can_launch:
            harness.deliver()
            continue
        waiting = [each for each in queued if each.handle not in harness.step_checker.first_run]
        harness.launch()
        _expect_started(harness, waiting[:free], f"in {free} rows that became free")
        if not harness.in_flight:
            break
    harness.drain()


def _send(harness: SchedulerHarness, number: int) -> Entry:
    return send(harness, Send(family=number, length=1 + number % 5, max_tokens=9 + 2 * number))


def _expect_start(harness: SchedulerHarness, entries: list[Entry], where: str) -> None:
    """The next step starts all these requests."""
    while not harness.can_launch:
        harness.deliver()
    harness.launch()
    _expect_started(harness, entries, where)


def _expect_started(harness: SchedulerHarness, entries: list[Entry], where: str) -> None:
    step_id = harness.outputs[-1].step_id
    first_run = harness.step_checker.first_run
    late = [entry for entry in entries if first_run.get(entry.handle, NEVER) > step_id]
    expect(not late, STARTS_BESIDE, "step {} starts without {}, which fit {}", step_id, late, where)
