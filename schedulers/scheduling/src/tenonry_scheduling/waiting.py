"""The waiting queue: ordered by a key that is computed once, on entering. Engine process.

A heap with lazy removal: a million waiting requests do not slow a step down, and an abort costs O(1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from tenonry.request import Request

# Key, arrival, request: entries with equal arrivals hold the same request, so that no two requests are compared.
Item = tuple[Any, int, Request]
MIN_COMPACTED = 64  # a heap of at most this many entries keeps the removed ones


class WaitingQueue:
    """Waiting requests. `order` returns a comparable key, smallest first; ties are broken by arrival."""

    def __init__(self, order: Callable[[Request], Any]) -> None:
        self._order = order
        self._heap: list[Item] = []
        self._members: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request.handle in self._members

    def add(self, request: Request) -> None:
        """Add a request; a returning one keeps its first key."""
        if request.key is None:
            request.key = self._order(request)
        item = (request.key, request.arrival, request)
        self._members[request.handle] = item
        heapq.heappush(self._heap, item)

    def discard(self, request: Request) -> None:
        """Remove a member from any position in the queue."""
        self._members.pop(request.handle, None)
        most = max(MIN_COMPACTED, 2 * len(self._members))
        if len(self._heap) > most:
            members = filter(self._is_member, self._heap)
            self._heap = list(members)
            heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Request]:
        """Yield requests in order. Members at the end of the loop stay queued; cost is per request visited.

        One loop at a time. A request that enters during the loop is visited if it is ordered behind those already
        visited.
        """
        visited: list[Item] = []
        try:
            while self._heap:
                heap = self._heap  # `discard` may have replaced it
                item = heapq.heappop(heap)
                if self._is_member(item):
                    visited.append(item)
                    yield item[2]
        finally:
            for item in visited:
                if self._is_member(item):
                    heapq.heappush(self._heap, item)

    def _is_member(self, item: Item) -> bool:
        """Return True for a current heap entry: it may have been removed, and its request may have returned."""
        request = item[2]
        return self._members.get(request.handle) is item
