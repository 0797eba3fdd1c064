"""The waiting queue: ordered by a key that is computed once, on entering. Engine process.

A heap with lazy removal, so that a million waiting requests cost a step nothing, and an abort costs O(1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from tenonry.request import Request

Item = tuple[
    Any, int, int, Request
]  # key, arrival, number of the entry (requests are never compared), request


class WaitingQueue:
    """Requests that wait to run. `order` gives a comparable key, smallest first; ties go by arrival."""

    def __init__(self, order: Callable[[Request], Any]) -> None:
        self._order = order
        self._heap: list[Item] = []
        self._members: dict[int, Item] = {}
        self._entries = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request.handle in self._members

    def add(self, request: Request) -> None:
        """Enter the queue; a request that comes back keeps the key it got first."""
        if request.key is None:
            request.key = self._order(request)
        self._entries += 1
        item = self._members[request.handle] = (
            request.key,
            request.arrival,
            self._entries,
            request,
        )
        heapq.heappush(self._heap, item)

    def discard(self, request: Request) -> None:
        """Take out of the queue, wherever it stands, if it is there."""
        self._members.pop(request.handle, None)
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._members):
            self._heap = [item for item in self._heap if self._is_member(item)]
            heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Request]:
        """Requests in order. Those still members when the loop ends or breaks stay queued; cost is per request seen.

        One loop at a time; a request that enters meanwhile is seen if it stands behind those already seen.
        """
        seen: list[Item] = []
        try:
            while self._heap:
                item = heapq.heappop(self._heap)
                if self._is_member(item):
                    seen.append(item)
                    yield item[3]
        finally:
            for item in seen:
                if self._is_member(item):
                    heapq.heappush(self._heap, item)

    def _is_member(self, item: Item) -> bool:
        """An entry that was removed stays in the heap; the same request may have entered again since."""
        return self._members.get(item[3].handle) is item
