"""The blocks of one rank in main memory. Worker process."""

from __future__ import annotations

from typing import Any


class HostStore:
    """Keeps at most `limit` bytes. What the index drops goes before what comes; a block without room is not kept."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._blocks: dict[bytes, bytes] = {}
        self._used = 0

    def wants(self, name: bytes) -> bool:
        return name not in self._blocks and self._used < self._limit

    def read(self, name: bytes) -> bytes | None:
        return self._blocks.get(name)

    def write(self, name: bytes, data: bytes) -> None:
        if name not in self._blocks and self._used + len(data) <= self._limit:
            self._blocks[name] = data
            self._used += len(data)

    def follow(self, orders: Any) -> None:
        clears, dropped = orders
        if clears:
            self.close()
        for name in dropped:
            data = self._blocks.pop(name, b"")
            self._used -= len(data)

    def close(self) -> None:
        self._blocks.clear()
        self._used = 0
