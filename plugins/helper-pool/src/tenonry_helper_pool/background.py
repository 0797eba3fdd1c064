"""Long-running work, concurrent with threads and processes that must not wait for it. Any process.

Compiling a grammar for half a second takes a full share of a processor from the steps of a model. It costs more if
torch has as many threads as there are processors: with one more of equal priority, Linux may put two of torch's
threads, which wait for each other some hundred times a step, on one processor, and leave them there for 30 to 100 ms.
So the priority of such threads is lowered before they begin, and further when they take longer than most.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")

# What most grammars are compiled in, also on a busy machine: a schema of 50 properties takes about 5 ms.
QUICK_S = 0.03
# About a quarter of a contended processor; all of an idle one.
FIRST_NICE = 5


class Background:
    """Runs work in separate threads, with the priority `FIRST_NICE` and one at a time. Any thread.

    Work that takes longer than `QUICK_S` continues with the priority `nice` (up to 19, the lowest) while the next
    begins; so quick work does not queue behind it. Threads that share locks with others, such as the interpreter's,
    must not be lowered far: a lock that one of them holds is held for longer. `stack_bytes`: stack size of these
    threads, 0 for the default.
    """

    def __init__(self, name: str, stack_bytes: int, nice: int) -> None:
        self._name = name
        self._nice = nice
        self._stack_bytes = stack_bytes
        self._lane = threading.Lock()

    def run(self, work: Callable[[], T]) -> T:
        """Wait for the result of `work`. Propagates its exceptions."""
        future: Future[T] = Future()
        with self._lane:
            thread = self._start(work, future)
            wait([future], QUICK_S)
            if not future.done() and thread.native_id is not None:
                lower(thread.native_id, self._nice)
        return future.result()

    def _start(self, work: Callable[[], T], future: Future[T]) -> threading.Thread:
        before = threading.stack_size(self._stack_bytes)  # of the thread that starts now
        try:
            thread = threading.Thread(
                target=_resolve, args=(work, future), name=self._name, daemon=True
            )
            thread.start()
        finally:
            threading.stack_size(before)
        return thread


def lower(thread_id: int, nice: int) -> None:
    """Lower the priority of a thread of this process, where the platform has one for each thread.

    One that is lower already stays as it is. Threads and processes that it starts begin with its own.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it has ended
            if os.getpriority(os.PRIO_PROCESS, thread_id) < nice:
                os.setpriority(os.PRIO_PROCESS, thread_id, nice)


def _resolve(work: Callable[[], T], future: Future[T]) -> None:
    lower(threading.get_native_id(), FIRST_NICE)
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - raised where the result is waited for
        future.set_exception(error)
