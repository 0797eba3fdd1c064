"""A pool of helper processes: jobs of many clients, fair, each bounded in time and memory. Front end; any thread.

A job that is expected to be short runs in any slot. When it takes more than `SHORT_S` of processor time it becomes a
long job, if one of their slots is free; else its worker is ended and it starts again later, in a slot of theirs. So one
slot is free for short jobs within `SHORT_S`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from tenonry_helper_pool.messages import Limits
from tenonry_helper_pool.queue import SHORT_S
from tenonry_helper_pool.stats import HelperStats
from tenonry_helper_pool.threads import lent_slot
from tenonry_helper_pool.turns import Report, Turn, Turns
from tenonry_helper_pool.workers import HelperUnavailable, Worker, Workers

__all__ = ["HelperPool", "HelperUnavailable", "Limits", "LimitExceeded", "Workers"]

MAX_LOST = 3  # times that a job starts again because something ended the processes


class LimitExceeded(Exception):
    """A job took too much time or memory, or crashed its worker."""


class HelperPool:
    """Runs jobs in `workers`, which other pools may use as well.

    `short_cost`: jobs of a larger cost are long from the start; `size`: slots.
    """

    def __init__(
        self,
        name: str,
        workers: Workers,
        *,
        short_cost: int,
        size: int | None = None,
        report: Report | None = None,
    ) -> None:
        self._workers = workers
        self._turns = Turns(name, short_cost, size=size, report=report)

    @property
    def stats(self) -> HelperStats:
        """The numbers so far."""
        return self._turns.stats

    def facts(self) -> bytes:
        """Facts of the handler; starts the first process. Raises HelperUnavailable."""
        return self._workers.facts()

    def count_lookup(self, is_hit: bool) -> None:
        """Count a job whose result may be known already."""
        self._turns.count_lookup(is_hit)

    def run(self, *parts: bytes, cost: int) -> memoryview:
        """The answer to a job of the current client; waits for it. `parts`: the body of the job.

        Raises LimitExceeded, HelperUnavailable, QueueFullError and DrainingError.
        """
        with lent_slot(), self._turns.hold(cost) as turn:
            for _ in range(MAX_LOST):
                answer = self._attempt(turn, parts)
                if answer is not None or not self._workers.are_lost:
                    break
            self._turns.check_open()
            if answer is None:
                self._turns.count_timeout()
                raise LimitExceeded
            return answer

    def close(self) -> None:
        """End the processes and reject jobs; waiting ones raise DrainingError."""
        self._turns.close()
        self._workers.close()

    def _attempt(self, turn: Turn, parts: Sequence[bytes]) -> memoryview | None:
        """The answer; None where the worker ended."""
        if not turn.is_long:
            answer, is_short = self._tried(turn, parts)
            if is_short or turn.is_long:
                return answer
            self._turns.restart(turn)
        answer, _ = self._tried(turn, parts)
        return answer

    def _tried(self, turn: Turn, parts: Sequence[bytes]) -> tuple[memoryview | None, bool]:
        """As `_outcome`. A worker may end between two jobs: if a reused one ends early, the job is retried in a new
        one.
        """
        worker = self._workers.take()
        answer, is_short = self._outcome(worker, turn, parts)
        if answer is None and is_short and worker.is_used:
            self._turns.check_open()
            return self._outcome(self._workers.take(is_new=True), turn, parts)
        return answer, is_short

    def _outcome(
        self, worker: Worker, turn: Turn, parts: Sequence[bytes]
    ) -> tuple[memoryview | None, bool]:
        """The answer, and whether it came, or the worker ended, within `SHORT_S`. One that takes longer than it may is
        ended.
        """
        is_short = False
        answer = None
        try:
            deadline = time.monotonic() + self._workers.limits.most_s
            worker.send(*parts)
            is_short = worker.answers_within(SHORT_S, deadline)
            if is_short or self._turns.may_go_on(turn):
                answer = worker.answer(deadline)
            return answer, is_short
        finally:
            # One that ran a long job may hold much memory.
            if is_short and answer is not None:
                self._workers.keep(worker)
            else:
                worker.close()
