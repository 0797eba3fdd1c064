"""Index of the blocks in main memory, and their eviction. Engine process."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any


class HostIndex:
    """Least recently used first; `capacity` blocks. Workers follow its orders, so their contents are known."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._stored: OrderedDict[bytes, None] = OrderedDict()
        self._clears = False

    def name(self, digest: bytes) -> bytes:
        return digest

    def has(self, digest: bytes) -> bool:
        return digest in self._stored

    def use(self, digests: Sequence[bytes]) -> None:
        for digest in reversed(digests):  # no block is of use without those before it
            if digest in self._stored:
                self._stored.move_to_end(digest)

    def add(self, digests: Sequence[bytes]) -> tuple[Sequence[bytes], Any]:
        """Orders: [False, names to be dropped]."""
        chosen = digests[: self._capacity]
        for digest in reversed(chosen):
            self._stored[digest] = None
            self._stored.move_to_end(digest)
        dropped = []
        while len(self._stored) > self._capacity:
            digest, _ = self._stored.popitem(last=False)
            dropped.append(digest)
        return chosen, [False, dropped] if dropped else None

    def orders(self) -> Any:
        """[True, []]: everything is to be dropped."""
        if not self._clears:
            return None
        self._clears = False
        return [True, []]

    def reset(self) -> bool:
        self._stored.clear()
        self._clears = True
        return True

    def numbers(self) -> dict[str, float]:
        """`kv_connector_host_usage`: the share of the room in use."""
        return {"kv_connector_host_usage": len(self._stored) / self._capacity}
