"""Bounds the work that a flood of requests causes in one iteration of the event loop. Front end, event loop.

Without a bound, the loop would parse and admit thousands of simultaneous requests before it reads a probe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class LoopThrottle:
    """Admits `max_per_turn` pieces of work per turn of the running event loop; others wait in the order of arrival."""

    __slots__ = ("_is_scheduled", "_left", "_max_per_turn", "_waiting")

    def __init__(self, max_per_turn: int) -> None:
        self._max_per_turn = max_per_turn
        self._left = max_per_turn
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def take(self) -> bool:
        """Return True if a piece of work may be done now; if not, `wait` for its turn."""
        if not self._left:
            return False
        self._left -= 1
        self._schedule()
        return True

    def wait(self, work: Callable[[], None]) -> None:
        """Call `work` in a later turn. It must not raise."""
        self._waiting.append(work)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_scheduled = False
        self._left = self._max_per_turn
        while self._left and self._waiting:
            self._left -= 1
            self._waiting.popleft()()
        if self._waiting:
            self._schedule()
