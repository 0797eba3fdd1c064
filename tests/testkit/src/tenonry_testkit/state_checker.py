"""Invariants of a scheduler between two calls, and when every request has ended. Test process."""

from __future__ import annotations

from tenonry.interfaces.scheduler import Scheduler
from tenonry_scheduling import BaseScheduler, BlockManager
from tenonry_testkit.answers import answer_of
from tenonry_testkit.ledger import Ledger
from tenonry_testkit.rules import (
    COUNTS,
    GONE_IS_SENT,
    NOTHING_LEAKS,
    ONE_OUTCOME,
    RIGHT_ENDING,
    expect,
)
from tenonry_testkit.step_checker import StepChecker


class StateChecker:
    """Compares a scheduler's reports with the ledger and the rows of its steps."""

    def __init__(
        self, scheduler: Scheduler, ledger: Ledger, step_checker: StepChecker, max_num_seqs: int
    ) -> None:
        self._scheduler = scheduler
        self._ledger = ledger
        self._step_checker = step_checker
        self._max_num_seqs = max_num_seqs

    def check_counts(self) -> None:
        """Check has_requests() and get_request_counts(). Raises RuleBroken."""
        live = self._ledger.num_live
        rows = self._step_checker.rows
        busy = answer_of(self._scheduler.has_requests)
        running, waiting = answer_of(self._scheduler.get_request_counts)
        expect(
            busy or not live,
            GONE_IS_SENT,
            "has_requests() is False while {} requests are unfinished",
            live,
        )
        expect(
            busy or not rows,
            GONE_IS_SENT,
            "has_requests() is False, but no step has removed rows {} from the workers",
            sorted(rows),
        )
        expect(
            running >= 0 and waiting >= 0 and running + waiting == live,
            COUNTS,
            "get_request_counts() is {} running and {} waiting, while {} requests are unfinished",
            running,
            waiting,
            live,
        )
        expect(
            running <= self._max_num_seqs,
            COUNTS,
            "get_request_counts() is {} running; max_num_seqs is {}",
            running,
            self._max_num_seqs,
        )

        if isinstance(self._scheduler, BaseScheduler):
            queued = len(self._scheduler.waiting)
            detail = "{} requests are in the queue, but {} wait"
            expect(queued <= waiting, COUNTS, detail, queued, waiting)

    def check_end(self) -> None:
        """Check an idle scheduler: every request ended, every row and block was released. Raises RuleBroken."""
        live = self._ledger.live
        rows = self._step_checker.rows
        expect(not live, ONE_OUTCOME, "these requests never ended: {}", live)
        expect(not rows, GONE_IS_SENT, "no step has removed rows {} from the workers", sorted(rows))
        stats = answer_of(self._scheduler.make_stats)
        expect(
            stats.num_running == 0 and stats.num_waiting == 0,
            COUNTS,
            "every request has ended, but make_stats() reports {}",
            stats,
        )
        expect(
            abs(stats.kv_cache_usage) < 1e-9,
            NOTHING_LEAKS,
            "every request has ended, but make_stats().kv_cache_usage is {:.3f}, expected 0",
            stats.kv_cache_usage,
        )
        for entry in self._ledger.entries.values():
            outcome, reason = entry.finished, entry.request.finish_reason
            is_right = outcome is not None and reason is outcome.reason
            is_rejected = not entry.request.is_finished  # add_request may not keep a rejected one
            detail = "{} ended, but its finish_reason is {}"
            expect(is_right or is_rejected, RIGHT_ENDING, detail, entry, reason)
        blocks = getattr(self._scheduler, "blocks", None)
        if isinstance(blocks, BlockManager):
            lost = blocks.num_total - blocks.num_free
            expect(lost == 0, NOTHING_LEAKS, "{} of {} blocks are not free", lost, blocks.num_total)
        if isinstance(self._scheduler, BaseScheduler):
            self._check_library(self._scheduler)

    @staticmethod
    def _check_library(scheduler: BaseScheduler) -> None:
        """The state that `tenonry_scheduling` keeps for every scheduler that is built on it."""
        lifecycle, rows = scheduler.lifecycle, scheduler.rows
        encoder, adapters = lifecycle.encoder, lifecycle.adapters
        left = {
            "requests": scheduler.requests,
            "rows in use": rows.size - rows.num_free,
            "active rows": rows.active,
            "rows with log-probabilities": rows.logprob_rows | rows.prompt_logprob_rows,
            "rows with a grammar": rows.num_grammars,
            "arrived rows": lifecycle.arrived,
            "images to encode": encoder.to_encode if encoder is not None else (),
            "requests that waited for an image": encoder.passed if encoder is not None else (),
            "pieces to keep whole": lifecycle.whole.by_row,
            "adapters": adapters.numbers() if adapters is not None else (),
        }
        kept = {name: content for name, content in left.items() if content}
        expect(not kept, NOTHING_LEAKS, "every request has ended, but the library keeps {}", kept)
