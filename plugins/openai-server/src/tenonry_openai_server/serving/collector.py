"""Full garbage collections at times when they are short. Front end, event loop.

A full collection walks through every live object: with thousands of requests in flight it holds the event loop for half
a second, and a flood of requests triggers several of them. So they are not started by the allocator but from the event
loop, as soon as few connections are open. Young objects are collected as usual.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

FEW_CONNECTIONS = 256  # a full collection takes about 20 ms up to this number
DUE_COUNT = 10  # collections of the middle generation until a full one is due, as in the allocator's default
# After this many a full collection does not wait any longer, so that garbage stays below some 300 MB. A flood of 5,000
# requests alone makes about 100.
MAX_COUNT = 400
NEVER = 2**31 - 1


class FullCollections:
    """Owns the full collections of this process from `start` to `stop`. `num_connections`: open ones."""

    def __init__(self, num_connections: Callable[[], int]) -> None:
        self._num_connections = num_connections
        self._thresholds: tuple[int, int, int] | None = None

    def start(self) -> None:
        """Freeze all current objects: they live as long as the server, so collections can skip them."""
        gc.collect()
        gc.freeze()
        if self._thresholds is None:
            self._thresholds = gc.get_threshold()
        young, middle, _ = self._thresholds
        gc.set_threshold(young, middle, NEVER)

    def poll(self) -> None:
        """Collect if due and short, or overdue. Called several times a second."""
        if self._thresholds is None:
            return
        _, _, count = gc.get_count()
        is_short = self._num_connections() <= FEW_CONNECTIONS
        if count >= MAX_COUNT or (count >= DUE_COUNT and is_short):
            gc.collect()

    def stop(self) -> None:
        """Leave full collections to the allocator again. Idempotent."""
        if self._thresholds is not None:
            gc.set_threshold(*self._thresholds)
            self._thresholds = None
