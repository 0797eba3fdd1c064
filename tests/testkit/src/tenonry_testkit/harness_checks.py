"""What must hold of a scheduler between two calls, and when everything has ended. Test process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_scheduling import BlockManager
from tenonry_testkit.rules import COUNTS, GONE_IS_SENT, NOTHING_LEAKS, ONE_OUTCOME, expect

if TYPE_CHECKING:
    from tenonry_testkit.harness import SchedulerHarness


def check_counts(harness: SchedulerHarness) -> None:
    """What the scheduler says of itself must fit the ledger, at any moment. Raises RuleBroken."""
    live = harness.ledger.num_live
    scheduler = harness.scheduler
    unfinished, busy = scheduler.has_unfinished_requests(), scheduler.has_requests()
    expect(
        unfinished == bool(live),
        COUNTS,
        f"has_unfinished_requests() is {unfinished} with {live} unfinished",
    )
    expect(
        busy or not live, GONE_IS_SENT, f"has_requests() is False with {live} unfinished requests"
    )
    expect(
        busy or not harness.step_checker.rows,
        GONE_IS_SENT,
        f"has_requests() is False, but the workers still hold rows {sorted(harness.step_checker.rows)}",
    )
    running, waiting = scheduler.get_request_counts()
    expect(
        running >= 0
        and waiting >= 0
        and running + waiting == live
        and running <= harness.spec.max_num_seqs,
        COUNTS,
        f"{running} running and {waiting} waiting, but {live} requests are unfinished",
    )


def check_end(harness: SchedulerHarness) -> None:
    """Everything ended, everything was given back."""
    expect(not harness.ledger.live, ONE_OUTCOME, f"never ended: {harness.ledger.live}")
    expect(
        not harness.step_checker.rows,
        GONE_IS_SENT,
        f"the workers still hold rows {sorted(harness.step_checker.rows)}",
    )
    stats = harness.scheduler.make_stats()
    expect(
        stats.num_running == 0 and stats.num_waiting == 0,
        COUNTS,
        f"idle, but the statistics say {stats}",
    )
    expect(
        abs(stats.kv_cache_usage) < 1e-9,
        NOTHING_LEAKS,
        f"idle, but kv_cache_usage is {stats.kv_cache_usage:.3f}",
    )
    blocks = getattr(harness.scheduler, "blocks", None)
    if isinstance(blocks, BlockManager):
        lost = blocks.num_total - blocks.num_free
        expect(lost == 0, NOTHING_LEAKS, f"{lost} of {blocks.num_total} blocks are not free")
