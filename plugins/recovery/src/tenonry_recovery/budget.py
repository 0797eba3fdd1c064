"""Restart limit of a crashing engine. Front end."""

from __future__ import annotations

from collections import defaultdict


class RestartBudget:
    """At most `max_restarts` of an engine in `window_s` seconds, and as many consecutive failed attempts."""

    def __init__(self, max_restarts: int = 3, window_s: float = 60.0) -> None:
        self.max_restarts = max_restarts
        self.window_s = window_s
        self._times: defaultdict[int, list[float]] = defaultdict(list)
        self._failures: defaultdict[int, int] = defaultdict(int)

    def __str__(self) -> str:
        return f"{self.max_restarts} times in {self.window_s:g} s"

    def take(self, index: int, now: float) -> int:
        """The number of this restart among those of the window; 0 if there is none left."""
        times = [each for each in self._times[index] if each > now - self.window_s]
        self._times[index] = times
        if max(len(times), self._failures[index]) >= self.max_restarts:
            return 0
        times.append(now)
        return len(times)

    def failed(self, index: int) -> None:
        """It did not become ready. A slow start may outlast the window, so failures are counted, too."""
        self._failures[index] += 1

    def served(self, index: int) -> None:
        """It is ready."""
        self._failures[index] = 0

    def given_up(self, index: int) -> None:
        """One of its number that comes later has nothing to do with it."""
        self._times[index] = []
        self._failures[index] = 0
