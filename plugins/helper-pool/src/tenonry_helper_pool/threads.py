"""Threads of an event loop, shared fairly by the clients of a server. Front end.

As the default executor of a loop they run the work of `asyncio.to_thread`: rendering of chats, tokenisation of texts,
base64 of images, large answers. Few jobs run at a time, because they hold the interpreter's lock. A job that waits for
a helper process or for the network lends its slot to another one for that time.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from tenonry.errors import QueueFullError
from tenonry_helper_pool.client import current_client, has_client
from tenonry_helper_pool.counts import HelperCounts
from tenonry_helper_pool.queue import FairQueue, Job
from tenonry_helper_pool.stats import HelperStats
from tenonry_helper_pool.turns import MAX_JOBS, MAX_PER_CLIENT, Report

NAME = "threads"
MIN_SLOTS = 3
MAX_SLOTS = 8
OWN_THREADS = 32  # for work that no client causes
T = TypeVar("T")
_CURRENT = threading.local()  # executor and job of this thread


@dataclass(eq=False, slots=True, kw_only=True)
class ThreadJob(Job):
    """A call that waits, has a slot, or lends it. `since`: when it got its state; `resumed`: set once it has its slot
    again.
    """

    call: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    since: float = 0.0
    has_slot: bool = False
    resumed: threading.Event | None = None


def default_size() -> int:
    """Slots on this machine: one per processor, between `MIN_SLOTS` and `MAX_SLOTS`."""
    return min(MAX_SLOTS, max(MIN_SLOTS, os.cpu_count() or 1))


@contextlib.contextmanager
def lent_slot() -> Iterator[None]:
    """Lend the slot of this thread's job for the block, which waits for something; elsewhere without effect."""
    executor, job = getattr(_CURRENT, "job", (None, None))
    if executor is None:
        yield
        return
    executor.lend(job)
    try:
        yield
    finally:
        executor.resume(job)


class FairThreads(ThreadPoolExecutor):
    """An executor that is fair between clients. One client has at most all but one of the `size` slots.

    A client may have `MAX_PER_CLIENT` jobs, all clients `MAX_JOBS`; more raise QueueFullError. Work that no client
    causes has threads besides.
    """

    def __init__(
        self, *, size: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(MAX_JOBS + OWN_THREADS, thread_name_prefix="fair")
        self._size = default_size() if size is None else size
        self._clock = clock
        self._guard = threading.Lock()
        self._queue: FairQueue[ThreadJob] = FairQueue()
        self._num_jobs: dict[str, int] = {}  # by client, those that lend their slots included
        self._is_closed = False
        self._counts = HelperCounts(NAME)
        self._report: Report | None = None

    @property
    def stats(self) -> HelperStats:
        """The numbers so far."""
        with self._guard:
            return self._counts.snapshot()

    def report_to(self, report: Report) -> None:
        """Report the numbers now and after each change."""
        self._report = report
        report(self.stats)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call `fn` in a thread once it is the turn of the current client. Raises QueueFullError."""
        if not has_client():
            return super().submit(fn, *args, **kwargs)
        job = ThreadJob(current_client(), 0, call=partial(fn, *args, **kwargs))
        with self._guard:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._check_room(job.client)
            self._num_jobs[job.client] = self._num_jobs.get(job.client, 0) + 1
            self._push(job)
        job.future.add_done_callback(partial(self._drop, job))
        self._dispatch()
        return job.future

    def lend(self, job: ThreadJob) -> None:
        """Run others in the slot of a job until `resume`."""
        with self._guard:
            self._release(job)
        self._dispatch()

    def resume(self, job: ThreadJob) -> None:
        """Wait until a job that lent its slot has one again."""
        resumed = threading.Event()
        with self._guard:
            if self._is_closed:
                return
            job.resumed = resumed
            self._push(job)
        self._dispatch()
        resumed.wait()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As the base class; jobs that wait for their first slot are cancelled."""
        with self._guard:
            self._is_closed = True
            waiting = []
            while (job := self._queue.take(lambda _: True)) is not None:
                self._queue.done(job, 0.0)
                self._counts.num_waiting -= 1
                waiting.append(job)
        for job in waiting:
            if job.resumed is None:
                job.future.cancel()
            else:
                job.resumed.set()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _check_room(self, client: str) -> None:
        own = self._num_jobs.get(client, 0)
        total = sum(self._num_jobs.values())
        if own < MAX_PER_CLIENT and total < MAX_JOBS:
            return
        self._counts.num_refused += 1
        jobs = f"{own} jobs of this client" if own >= MAX_PER_CLIENT else f"{total} jobs"
        raise QueueFullError(f"{jobs} wait for '{NAME}'; try again later")

    def _push(self, job: ThreadJob) -> None:
        job.since = self._clock()
        self._queue.push(job)
        self._counts.num_waiting += 1

    def _dispatch(self) -> None:
        """Start jobs for which there are slots, and report the numbers."""
        with self._guard:
            started = self._started()
        for job in started:
            if job.resumed is not None:
                job.resumed.set()
                continue
            try:
                super().submit(self._run, job)
            except RuntimeError:  # it is being shut down
                job.future.cancel()
        if self._report is not None:
            self._report(self.stats)

    def _started(self) -> list[ThreadJob]:
        started = []
        while self._counts.num_running < self._size:
            job = self._queue.take(self._may_start)
            if job is None:
                break
            now = self._clock()
            self._counts.waiting_s += now - job.since
            self._counts.num_waiting -= 1
            self._counts.num_running += 1
            job.since = now
            job.has_slot = True
            started.append(job)
        return started

    def _may_start(self, job: ThreadJob) -> bool:
        return self._queue.running_of(job.client) < max(1, self._size - 1)

    def _run(self, job: ThreadJob) -> None:
        if not job.future.set_running_or_notify_cancel():
            self._end(job)
            return
        _CURRENT.job = (self, job)
        resolve = _called(job.call, job.future)
        _CURRENT.job = (None, None)
        self._end(job)
        resolve()

    def _end(self, job: ThreadJob) -> None:
        with self._guard:
            self._release(job)
            self._counts.num_jobs += 1
            self._forget(job)
        self._dispatch()

    def _release(self, job: ThreadJob) -> None:
        if job.has_slot:
            seconds = self._clock() - job.since
            self._queue.done(job, seconds)
            self._counts.num_running -= 1
            self._counts.busy_s += seconds
            job.has_slot = False

    def _drop(self, job: ThreadJob, future: Future[Any]) -> None:
        """A job that waits for its first slot was cancelled, such as one whose client has left."""
        if future.cancelled():
            with self._guard:
                if self._queue.remove(job):
                    self._counts.num_waiting -= 1
                    self._forget(job)

    def _forget(self, job: ThreadJob) -> None:
        self._num_jobs[job.client] -= 1
        if not self._num_jobs[job.client]:
            del self._num_jobs[job.client]


def _called(call: Callable[[], Any], future: Future[Any]) -> Callable[[], None]:
    """The outcome of a call, to be set."""
    try:
        return partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised where the result is awaited
        return partial(future.set_exception, error)
    finally:
        del future  # no cycle through the traceback of the error
