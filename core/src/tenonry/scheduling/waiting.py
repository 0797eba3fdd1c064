"""The waiting queue: ordered by a key that is computed once, on entering. Engine process.

A heap with lazy removal, so that a million waiting requests cost a step nothing, and an abort costs O(1).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

from tenonry.request import Request


class WaitingQueue:
    """Requests that wait to run. `order` gives a comparable key, smallest first; ties go by arrival."""

    def __init__(self, order: Callable[[Request], Any]) -> None:
        self._order = order
        self._heap: list[tuple[Any, int, Request]] = []
        self._members: dict[int, Request] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, request: Request) -> bool:
        return request.handle in self._members

    def add(self, request: Request) -> None:
        """Enter the queue; a request that comes back keeps the key it got first."""
        if request.key is None:
            request.key = self._order(request)
        self._members[request.handle] = request
        heapq.heappush(self._heap, (request.key, request.arrival, request))

    def get(self, handle: int) -> Request | None:
        return self._members.get(handle)

    def remove(self, request: Request) -> None:
        """Take out of the queue, wherever it stands."""
        del self._members[request.handle]
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._members):
            self._heap = [item for item in self._heap if item[2].handle in self._members]
            heapq.heapify(self._heap)

    def handles(self) -> list[int]:
        return list(self._members)

    def head(self) -> Request | None:
        """The next request, without taking it."""
        while self._heap and self._heap[0][2].handle not in self._members:
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def __iter__(self) -> Iterator[Request]:
        """Requests in order. Those still members when the loop ends or breaks stay queued; cost is per request seen."""
        seen: list[tuple[Any, int, Request]] = []
        try:
            while self._heap:
                item = heapq.heappop(self._heap)
                if item[2].handle in self._members:
                    seen.append(item)
                    yield item[2]
        finally:
            for item in seen:
                if item[2].handle in self._members:
                    heapq.heappush(self._heap, item)
