"""The prefix cache: lookup of a new row's blocks by digest, and publication of a row's blocks. Engine process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from tenonry.request import Request
from tenonry.step import I32
from tenonry_kvcache.hashing import BlockHasher, Chain
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_scheduling import Rows
from tenonry_scheduling.rows import Index

NEVER = np.iinfo(np.int32).max
NO_BLOCK_IDS = np.empty(0, np.intp)
# Rows that started together fill a block in the same step. A step hashes at most this many blocks plus three times the
# mean rate, so that the work is spread over a few steps.
MIN_OFFERED = 16
OFFERED_SHARE = 3


class Tables(Protocol):
    """Block tables of rows."""

    def cache_row(self, row: int, first: int, stop: int, digests: Sequence[bytes]) -> BlockIds:
        """Cache the row's blocks [first, stop); returns the published ones."""
        ...

    def cache_each(self, rows: Index, places: I32, digests: Sequence[bytes]) -> BlockIds:
        """As `cache_row`, for the block at `places[i]` of each of the `rows`."""
        ...


class PrefixCache:
    """Digests by request and, in columns over rows (S), what each row has published.

    due i32[S]: end of the first block that was neither published nor found in the cache, in tokens, which have to be
    known for it; hits i32[S]: leading blocks found in the cache.
    """

    def __init__(
        self, num_rows: int, block_size: int, pool: BlockPool, hasher: BlockHasher
    ) -> None:
        self._size = block_size
        self._pool = pool
        self.hasher = hasher
        self.hits = np.zeros(num_rows, np.int32)
        self._due = np.full(num_rows, NEVER, np.int32)
        self.chain_of_handle: dict[int, Chain] = {}
        self._chain_of_row: list[Chain] = [[] for _ in range(num_rows)]
        self._offsets = np.arange(block_size)

    def find(self, request: Request, limit: int) -> tuple[Chain, BlockIds]:
        """Return the request's digests up to the first miss, and the cached blocks of its longest known prefix.

        At most `limit` blocks.
        """
        found: list[int] = []
        for digest in self.digests(request, limit):
            block = self._pool.find(digest)
            if block is None:
                break
            found.append(block)
        return self.chain(request), np.array(found, np.intp)

    def enter(self, row: int, chain: Chain, count: int) -> None:
        """Start the row with `count` cached blocks of `chain`, and cache the blocks it computes from now on."""
        self._chain_of_row[row] = chain
        self.hits[row] = count
        self._due[row] = (count + 1) * self._size

    def digests(self, request: Request, limit: int) -> Iterator[bytes]:
        """Digests of the request's first `limit` blocks, computed lazily."""
        chain = self.chain(request)
        token_ids = np.ascontiguousarray(request.token_ids, np.int32)
        data = token_ids.data.cast("B")
        for number in range(limit):
            if number + 1 == len(chain):
                self.hasher.extend(chain, data, 0, number + 1)
            yield chain[number + 1]

    def names(self, request: Request, count: int) -> list[bytes]:
        """Return the digests of the request's first `count` blocks."""
        return list(self.digests(request, count))

    def chain(self, request: Request) -> Chain:
        """Digests of the request, stored until it ends."""
        handle = request.handle
        chain = self.chain_of_handle.get(handle)
        if chain is None:
            chain = self.hasher.chain(request)
            self.chain_of_handle[handle] = chain
        return chain

    def chain_of(self, rows: Rows, row: int, num_blocks: int = 0) -> Chain:
        """Digests of the row, at least those of its first `num_blocks` blocks, whose tokens are known."""
        chain = self._chain_of_row[row]
        hashed = len(chain) - 1
        if hashed < num_blocks:
            tokens = rows.token_ids[row, hashed * self._size : num_blocks * self._size]
            data = tokens.data.cast("B")
            self.hasher.extend(chain, data, hashed, num_blocks)
        return chain

    def leave(self, row: int) -> None:
        """Free the row."""
        self.hits[row] = 0
        self._due[row] = NEVER

    def forget(self, handle: int) -> None:
        """Drop the digests of an ended request."""
        self.chain_of_handle.pop(handle, None)

    def reset(self) -> bool:
        """Drop all blocks, including later ones of rows in use. True if no block was in use."""
        self._due.fill(NEVER)
        return self._pool.clear()

    # ------------------------------------------------------------------ offering
    def offer_row(self, rows: Rows, tables: Tables, row: int, num_known: int) -> BlockIds:
        """Publish the full blocks of one row; returns the new ones."""
        if num_known < self._due[row]:
            return NO_BLOCK_IDS
        size = self._size
        first = int(self._due[row]) // size - 1
        stop = num_known // size
        chain = self.chain_of(rows, row, stop)
        blocks = tables.cache_row(row, first, stop, chain[first + 1 : stop + 1])
        self._due[row] = (stop + 1) * size
        return blocks

    def offer(self, rows: Rows, tables: Tables, which: Index, num_known: I32) -> BlockIds:
        """Publish the full blocks of the rows `which`, or of some of them; returns the new ones."""
        due = (num_known >= self._due[which]).nonzero()[0]
        if len(due) == 0:
            return NO_BLOCK_IDS
        size = self._size
        most = MIN_OFFERED + OFFERED_SHARE * len(which) // size
        due = due[:most]
        row = which[due]
        known = num_known[due]
        first = self._due[row] // size - 1
        stop = known // size
        chains = [self._chain_of_row[each] for each in row.tolist()]
        lengths = [len(chain) for chain in chains]
        if (stop - first).max() > 1 or lengths != stop.tolist():
            each_row = zip(row.tolist(), known.tolist(), strict=True)
            parts = [self.offer_row(rows, tables, *each) for each in each_row]
            return np.concatenate(parts)
        # The usual case: one block of each row, whose tokens arrived after the previous digest.
        places = (first * size)[:, None] + self._offsets
        tokens = rows.token_ids[row[:, None], places]
        digests = self.hasher.extend_each(chains, tokens.tobytes())
        blocks = tables.cache_each(row, first, digests)
        self._due[row] += size
        return blocks
