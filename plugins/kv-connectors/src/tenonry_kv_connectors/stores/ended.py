"""Finished transfers, passed from the transfer thread to the step that polls them. Worker process."""

from __future__ import annotations

from collections import deque


class EndedTransfers:
    """One thread adds, another takes; a deque's ends need no lock."""

    def __init__(self) -> None:
        self._ended: deque[tuple[int, bool]] = deque()

    def add(self, handle: int, worked: bool) -> None:
        """The transfer of this request has ended."""
        self._ended.append((handle, worked))

    def take(self) -> tuple[list[int], list[int]]:
        """Handles that were added since the last call: (done, failed)."""
        done: list[int] = []
        failed: list[int] = []
        while self._ended:
            handle, worked = self._ended.popleft()
            (done if worked else failed).append(handle)
        return done, failed
