"""Requests whose grammar the worker compiles: they stay outside the queue until it is ready. Engine process.

A step never waits for a grammar: a request starts when its own is ready, and the others continue.
"""

from __future__ import annotations

from collections.abc import Iterable

from tenonry.request import Request
from tenonry.sampling_params import StructuredOutput


class GrammarRequests:
    """Requests that wait for a grammar, and those with a compiled one. `most`: maximum waiting requests."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._new: dict[int, StructuredOutput | None] = {}
        self._waiting: dict[int, Request] = {}
        self._ready: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Return True if one more request may wait."""
        return len(self._waiting) < self._most

    def is_ready(self, request: Request) -> bool:
        """Return True if the request may start: it has no grammar, or the worker has compiled it."""
        spec = request.source.sampling_params.structured_output
        return spec is None or request.handle in self._ready

    def ask(self, request: Request) -> None:
        """Request compilation of the grammar by the worker."""
        handle = request.handle
        self._waiting[handle] = request
        self._new[handle] = request.source.sampling_params.structured_output

    def asks(self) -> dict[int, StructuredOutput | None]:
        """Grammars that the next step requests from the worker: all that are not ready."""
        if not self._waiting:
            return {}
        asked = {handle: self._new.get(handle) for handle in self._waiting}
        self._new.clear()
        return asked

    def end(self, handles: Iterable[int]) -> list[Request]:
        """Record compiled grammars; returns the requests that may start now."""
        found = []
        for handle in handles:
            request = self._waiting.pop(handle, None)
            if request is not None:
                self._ready.add(handle)
                found.append(request)
        return found

    def forget(self, handle: int) -> None:
        """Remove an ended request."""
        self._waiting.pop(handle, None)
        self._new.pop(handle, None)
        self._ready.discard(handle)
