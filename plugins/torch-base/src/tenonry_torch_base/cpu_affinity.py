"""Pins each of torch's threads to its own processor, for the steps of large models. Worker process.

Such threads wait for each other on their processors (see `waiting`). When another process occupies one of these, even
with the lowest priority, Linux may put two of the threads on one that is left, and leave them there for 100 ms and
more: they alternate every few milliseconds, mostly waiting for each other. A pinned thread shares its processor with
the other process, by their priorities. Threads that soon sleep lose less by migration, and stay unpinned.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Set as AbstractSet
from types import TracebackType

import torch

from tenonry_torch_base.openmp import thread_ids
from tenonry_torch_base.waiting import waits_long

LOOK_S = 1.0  # OpenMP ends threads and creates new ones when their number changes


class CpuAffinity:
    """CPU affinity of the thread that computes steps, as a context around the model; no effect before `take`, or if
    that found no reason.
    """

    def __init__(self) -> None:
        self._all: AbstractSet[int] = frozenset()
        # Of the thread that computes steps; empty: nothing is done.
        self._own: AbstractSet[int] = frozenset()
        self._threads: list[int] = []
        self._look_at = 0.0

    def take(self) -> None:
        """Pin each of torch's threads to a processor, if there are as many of both. Once, after the first step."""
        if sys.platform != "linux" or not waits_long() or "OMP_PROC_BIND" in os.environ:
            return
        self._all = os.sched_getaffinity(0)
        num_threads = torch.get_num_threads()
        if not 1 < num_threads == len(self._all):
            return
        self._threads = thread_ids(num_threads)
        if len(self._threads) != num_threads:
            return
        first, *others = sorted(self._all)
        mine = threading.get_native_id()
        helpers = (thread for thread in self._threads if thread != mine)
        for thread, processor in zip(helpers, others, strict=True):
            _move(thread, {processor})
        self._own = {first}
        self._look_at = time.monotonic() + LOOK_S

    def __enter__(self) -> None:
        if not self._own:
            return
        if time.monotonic() >= self._look_at:
            self._look()
        # Only during the step: threads and processes inherit the affinity of the thread that starts them.
        _move(0, self._own or self._all)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._own:
            _move(0, self._all)

    def _look(self) -> None:
        """Unpin all threads permanently if they are not the pinned ones."""
        self._look_at = time.monotonic() + LOOK_S
        found = thread_ids(len(self._threads))
        if found != self._threads:
            self._own = frozenset()
            for thread in {*found, *self._threads}:
                _move(thread, self._all)


def _move(thread: int, processors: AbstractSet[int]) -> None:
    # It has ended, or the processors were taken from this process.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(thread, processors)
