"""Limit on the number of different adapters (LoRA) of the running rows. Engine process."""

from __future__ import annotations

from collections import Counter

from tenonry.request import Request


class AdapterLimit:
    """Bounds the different adapters of all rows to `most`; each step runs some of these rows.

    Up to `max_passing` requests without an adapter may pass one that waits for its own; requests with another adapter
    never do. A request therefore waits for rows to end, not for later arrivals.
    """

    __slots__ = (
        "_handles",
        "_is_waiting",
        "_max_passing",
        "_most",
        "_num_passed",
        "_open",
        "_running",
        "_waiting",
    )

    def __init__(self, most: int, max_passing: int) -> None:
        self._most = most
        self._max_passing = max_passing
        self._handles: dict[str, set[int]] = {}  # digest → requests with a row
        self._is_waiting = False  # in this step a request did not fit
        self._waiting: int | None = None  # the first request that did not fit, last time
        self._num_passed = 0  # requests that passed it, in any step
        # By name, unfinished requests, and those of them with a row.
        self._open: Counter[str] = Counter()
        self._running: Counter[str] = Counter()

    def begin_step(self) -> None:
        """Start a step, which visits requests in order. Counts of passing requests persist: a step may visit none."""
        self._is_waiting = False

    @property
    def is_closed(self) -> bool:
        """Return True if no more requests may pass the waiting one."""
        return self._is_waiting and self._num_passed >= self._max_passing

    def begin(self, request: Request) -> None:
        """Count a new request."""
        if request.source.adapter is not None:
            self._open[request.source.adapter.name] += 1

    def end(self, request: Request) -> None:
        """Remove an ended request."""
        if request.source.adapter is None:
            return
        name = request.source.adapter.name
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
            self._running.pop(name, None)

    def numbers(self) -> dict[str, float]:
        """Running and waiting requests of each adapter, for `SchedulerStats.extra`."""
        found: dict[str, float] = {}
        for name, count in self._open.items():
            running = self._running[name]
            found[f"lora_requests_running:{name}"] = running
            found[f"lora_requests_waiting:{name}"] = count - running
        return found

    def admits(self, request: Request) -> bool:
        """Return True if the request may start now."""
        adapter = request.source.adapter
        if adapter is None:
            return not self.is_closed
        handles = self._handles
        fits = adapter.digest in handles or len(handles) < self._most
        if fits and not self._is_waiting:
            return True
        if not self._is_waiting and request.handle != self._waiting:
            self._waiting = request.handle
            self._num_passed = 0
        self._is_waiting = True
        return False

    def enter(self, request: Request) -> None:
        """Record that the request has a row."""
        if request.handle == self._waiting:
            self._waiting = None
        if self._is_waiting:
            self._num_passed += 1
        adapter = request.source.adapter
        if adapter is not None:
            self._handles.setdefault(adapter.digest, set()).add(request.handle)
            self._running[adapter.name] += 1

    def leave(self, request: Request) -> None:
        """Record that the request's row is free."""
        adapter = request.source.adapter
        if adapter is None:
            return
        self._running[adapter.name] -= 1
        handles = self._handles.get(adapter.digest, set())
        handles.discard(request.handle)
        if not handles:
            self._handles.pop(adapter.digest, None)
