"""Order of jobs: number of concurrent ones, and the next one. Front end; jobs wait in separate threads.

There are `size` slots. Jobs that are known or found to be long take all but one of them, so that a short job waits at
most for another short one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tenonry.errors import DrainingError, QueueFullError
from tenonry_helper_pool.client import current_client
from tenonry_helper_pool.counts import HelperCounts
from tenonry_helper_pool.queue import FairQueue, Job
from tenonry_helper_pool.stats import HelperStats

MAX_PER_CLIENT = 256
MAX_JOBS = 1024
MAX_SLOTS = 4
Report = Callable[[HelperStats], None]


def default_size() -> int:
    """Slots on this machine: half of its processors, between 2 and `MAX_SLOTS`."""
    is_linux = hasattr(os, "sched_getaffinity")
    cpus = len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1
    return min(MAX_SLOTS, max(2, cpus // 2))


@dataclass(eq=False, slots=True)
class Turn(Job):
    """A job and its place: it waits, or has a slot. `since`: when that began."""

    since: float = 0.0
    is_running: bool = False
    decided: threading.Event = field(default_factory=threading.Event)


class Turns:
    """A semaphore that is fair between clients.

    `short_cost`: jobs of a larger cost are long from the start. `report` receives the numbers after each change, from
    the thread of the job.
    """

    def __init__(
        self,
        name: str,
        short_cost: int,
        *,
        size: int | None = None,
        report: Report | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.size = default_size() if size is None else size
        if self.size < 2:
            raise ValueError(f"size={size}: one slot is for short jobs, so there are at least 2")
        self._short_cost = short_cost
        self._report = report
        self._clock = clock
        self._lock = threading.Lock()
        self._queue: FairQueue[Turn] = FairQueue()
        self._num_long = 0
        self._is_closed = False
        self._counts = HelperCounts(name)
        self._changed()

    @property
    def stats(self) -> HelperStats:
        """The numbers so far."""
        with self._lock:
            return self._counts.snapshot()

    @contextlib.contextmanager
    def hold(self, cost: int) -> Iterator[Turn]:
        """Wait for a slot, and keep it for the block.

        Raises QueueFullError where the client has `MAX_PER_CLIENT` jobs here, or all clients have `MAX_JOBS`, and
        DrainingError once the turns are closed.
        """
        turn = self._enter(current_client(), cost)
        try:
            self._wait(turn)
            yield turn
        finally:
            with self._lock:
                self._leave(turn)
                self._dispatch()
            self._changed()

    def may_go_on(self, turn: Turn) -> bool:
        """A job runs for longer than a short one: whether it may keep its slot, as a long job."""
        with self._lock:
            if turn.is_long or self._num_long < self.size - 1:
                self._num_long += not turn.is_long
                turn.is_long = True
            return turn.is_long

    def restart(self, turn: Turn) -> None:
        """Exchange the slot of a short job for one of those that long jobs may take; waits for it."""
        with self._lock:
            self._leave(turn)
            self._counts.num_jobs -= 1
            self._counts.num_restarted += 1
            turn.is_long = True
            self._add(turn)
        self._changed()
        self._wait(turn)

    def count_lookup(self, is_hit: bool) -> None:
        """A result was looked up, and found or not. Reported with the next change."""
        with self._lock:
            self._counts.num_lookups += 1
            self._counts.num_hits += is_hit
        if is_hit:
            self._changed()

    def count_timeout(self) -> None:
        """A job exceeded a limit."""
        with self._lock:
            self._counts.num_timeouts += 1

    def check_open(self) -> None:
        """Raises DrainingError once the turns are closed."""
        if self._is_closed:
            raise DrainingError(f"this front end ends: '{self.name}' takes no more jobs")

    def close(self) -> None:
        """Reject jobs from now on, including those that wait."""
        with self._lock:
            self._is_closed = True
            while (turn := self._queue.take(lambda _: True)) is not None:
                self._queue.done(turn, 0.0)
                self._counts.num_waiting -= 1
                turn.decided.set()

    def _enter(self, client: str, cost: int) -> Turn:
        with self._lock:
            self.check_open()
            self._check_room(client)
            turn = Turn(client, cost, cost > self._short_cost)
            self._add(turn)
        self._changed()
        return turn

    def _check_room(self, client: str) -> None:
        own = self._queue.size_of(client)
        total = self._counts.num_waiting + self._counts.num_running
        if own < MAX_PER_CLIENT and total < MAX_JOBS:
            return
        self._counts.num_refused += 1
        jobs = f"{own} jobs of this client" if own >= MAX_PER_CLIENT else f"{total} jobs"
        raise QueueFullError(f"{jobs} wait for '{self.name}'; try again later")

    def _add(self, turn: Turn) -> None:
        turn.decided.clear()
        turn.since = self._clock()
        self._queue.push(turn)
        self._counts.num_waiting += 1
        self._dispatch()

    def _wait(self, turn: Turn) -> None:
        turn.decided.wait()
        self.check_open()

    def _dispatch(self) -> None:
        """Start jobs for which there are slots."""
        while self._counts.num_running < self.size:
            turn = self._queue.take(self._has_slot)
            if turn is None:
                return
            now = self._clock()
            self._counts.waiting_s += now - turn.since
            self._counts.num_waiting -= 1
            self._counts.num_running += 1
            self._num_long += turn.is_long
            turn.since = now
            turn.is_running = True
            turn.decided.set()

    def _has_slot(self, turn: Turn) -> bool:
        return not turn.is_long or self._num_long < self.size - 1

    def _leave(self, turn: Turn) -> None:
        if turn.is_running:
            seconds = self._clock() - turn.since
            turn.is_running = False
            self._queue.done(turn, seconds)
            self._counts.num_running -= 1
            self._num_long -= turn.is_long
            self._counts.num_jobs += 1
            self._counts.busy_s += seconds
        elif self._queue.remove(turn):
            self._counts.num_waiting -= 1

    def _changed(self) -> None:
        if self._report is not None:
            self._report(self.stats)
