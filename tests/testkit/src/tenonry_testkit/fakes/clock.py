"""A clock controlled by the test. Test process."""

from __future__ import annotations


class VirtualClock:
    """Monotonic seconds, constant until `advance`. Pass it as a `clock` callable."""

    def __init__(self, start: float = 1000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Advance the clock; returns the new time. Raises ValueError for a negative step."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock cannot go back {-seconds} s; give 0 or more")
        self.now += seconds
        return self.now
