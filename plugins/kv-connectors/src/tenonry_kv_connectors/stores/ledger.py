"""The scheduler half's record of store operations for each request, until they are sent with a step. Engine process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tenonry.request import Request

# [handle, [[name, block id], …]], for a save with the index's orders before it: plain values, as metadata crosses
# processes.
Job = list[Any]


class Index(Protocol):
    """Blocks in the stores of all ranks, as far as the engine knows. A block that it reports may still be lost."""

    def name(self, digest: bytes) -> bytes:
        """The name under which the stores keep the block of this digest."""
        ...

    def has(self, digest: bytes) -> bool:
        """Return True if every rank can load the block."""
        ...

    def use(self, digests: Sequence[bytes]) -> None:
        """Blocks of one prefix, in order, are loaded or were computed again: they go last when space is short."""
        ...

    def add(self, digests: Sequence[bytes]) -> tuple[Sequence[bytes], Any]:
        """Blocks of one prefix, in order, can be written: (those that shall be, orders to the stores before that).

        Orders are plain values, or None.
        """
        ...

    def orders(self) -> Any:
        """Orders without pending blocks, or None. Called in each step."""
        ...

    def reset(self) -> bool:
        """Nothing that is stored now is found again; True if that is so."""
        ...

    def numbers(self) -> dict[str, float]:
        """Its own numbers, by name."""
        ...


class Ledger:
    """Loads and saves that the next step's metadata will carry.

    `block_bytes`: of one block over all ranks, for the numbers.
    """

    def __init__(self, index: Index, block_size: int, block_bytes: int) -> None:
        self.index = index
        self._size = block_size
        self._block_bytes = block_bytes
        self._first: dict[int, int] = {}  # handle → first block to load; for one step
        self._loads: list[Job] = []
        self._saves: list[Job] = []
        self._num_loaded = 0
        self._num_saved = 0

    def usable(self, request: Request) -> int:
        """Blocks that may be loaded: whole ones, and never the last token."""
        return (request.num_tokens - 1) // self._size

    def match(
        self, request: Request, num_computed_tokens: int, digests: Sequence[bytes]
    ) -> tuple[int, bool]:
        """As `KVConnector.match`; `digests` are those of the usable blocks."""
        first = num_computed_tokens // self._size
        last = first
        while last < len(digests) and self.index.has(digests[last]):
            last += 1
        if last == first:
            return 0, False
        self._first[request.handle] = first
        return (last - first) * self._size, True

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_tokens: int, digests: Sequence[bytes]
    ) -> None:
        """As `KVConnector.allocated`."""
        count = num_tokens // self._size
        if not count:
            return
        first = self._first.pop(request.handle)
        chosen = digests[first : first + count]
        job = [request.handle, self._pairs(chosen, block_ids[first : first + count])]
        self._loads.append(job)
        self.index.use(chosen)
        self._num_loaded += count

    def finished(
        self, request: Request, block_ids: Sequence[int], digests: Sequence[bytes]
    ) -> bool:
        """Queue the request's new blocks for saving; return True if some have to be kept until they are written."""
        stored = {digest for digest in digests if self.index.has(digest)}
        self.index.use([digest for digest in digests if digest in stored])
        pairs = zip(digests, block_ids, strict=True)
        new = [pair for pair in pairs if pair[0] not in stored]
        if not new:
            return False
        chosen, orders = self.index.add([digest for digest, _ in new])
        kept = set(chosen)
        new = [pair for pair in new if pair[0] in kept]
        digests = [digest for digest, _ in new]
        job = [request.handle, self._pairs(digests, [block for _, block in new]), orders]
        self._saves.append(job)
        self._num_saved += len(new)
        return True

    def _pairs(self, digests: Sequence[bytes], block_ids: Sequence[int]) -> list[list[Any]]:
        return [
            [self.index.name(digest), int(block)]
            for digest, block in zip(digests, block_ids, strict=True)
        ]

    def take(self) -> Any:
        """[loads, orders, saves] for the worker halves, or None."""
        self._first.clear()
        orders = self.index.orders()
        if not self._loads and not self._saves and orders is None:
            return None
        metadata = [self._loads, orders, self._saves]
        self._loads = []
        self._saves = []
        return metadata

    def reset(self) -> bool:
        """Also drops saves that no step has carried yet, but for their handles, which `poll` must name."""
        self._saves = [[handle, [], None] for handle, *_ in self._saves]
        return self.index.reset()

    def numbers(self) -> dict[str, float]:
        """Bytes over all ranks since the start, and what the index counts."""
        return {
            "kv_connector_load_bytes": float(self._num_loaded * self._block_bytes),
            "kv_connector_save_bytes": float(self._num_saved * self._block_bytes),
            **self.index.numbers(),
        }
