"""Durations of start phases: wall-clock seconds, and CPU seconds of this process on all cores. Worker process."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Phases:
    """Phases by name, in the order in which they first began; re-entering one adds to its duration.

    A phase inside another is not counted in that one.
    """

    __slots__ = ("_inside", "seconds")

    def __init__(self) -> None:
        # Name → seconds on the clock, CPU seconds.
        self.seconds: dict[str, tuple[float, float]] = {}
        self._inside = (0.0, 0.0)

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Context of the phase `name`; its time counts also if it raises."""
        self.seconds.setdefault(name, (0.0, 0.0))
        around = self._inside
        self._inside = (0.0, 0.0)
        wall = time.perf_counter()
        cpu = time.process_time()
        try:
            yield
        finally:
            took = (time.perf_counter() - wall, time.process_time() - cpu)
            before = self.seconds[name]
            self.seconds[name] = _plus(before, _less(took, self._inside))
            self._inside = _plus(around, took)

    @property
    def text(self) -> str:
        """The phases with their seconds on the clock, such as "look 0.10, weights 0.25"."""
        return ", ".join(f"{name} {wall:.2f}" for name, (wall, _) in self.seconds.items())


def _plus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]


def _less(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] - other[0], one[1] - other[1]
