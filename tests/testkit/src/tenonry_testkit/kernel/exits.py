"""Reports of a supervisor on the exits of its children."""

from __future__ import annotations

import threading


class Exits:
    """Records each exit: name, process id, exit code."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.event = threading.Event()

    def __call__(self, name: str, pid: int, code: int) -> None:
        self.seen.append((name, pid, code))
        self.event.set()
