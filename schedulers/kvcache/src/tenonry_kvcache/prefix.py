"""The prefix cache: finding a new row's blocks by digest, and offering a row's own ones. Engine process."""

from __future__ import annotations

import numpy as np

from tenonry.request import Request
from tenonry.step import I32
from tenonry_kvcache.hashing import BlockHasher
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_scheduling import Rows
from tenonry_scheduling.rows import Index

NEVER = np.iinfo(np.int32).max
NOTHING = np.empty(0, np.intp)


class PrefixCache:
    """Digests by request and, in columns over rows (S), how far each row has offered its blocks to others.

    offered i32[S]: leading blocks that were offered, or came from the cache; due i32[S]: known tokens from which the
    next one can be offered; hits i32[S]: leading blocks that came from the cache.
    """

    def __init__(
        self, num_rows: int, block_size: int, pool: BlockPool, hasher: BlockHasher
    ) -> None:
        self._size, self._pool, self._hasher = block_size, pool, hasher
        self.hits, self._offered = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        self._due = np.full(num_rows, NEVER, np.int32)
        self._chains: dict[
            int, list[bytes]
        ] = {}  # handle → seed, and the digest of each block known so far
        self._chain: list[list[bytes]] = [[] for _ in range(num_rows)]
        self._offsets = np.arange(block_size)

    def enter(self, request: Request, row: int, limit: int) -> BlockIds:
        """Cached blocks of the longest known prefix, at most `limit`; digests are computed up to the first miss."""
        chain = self._chain_of(request)
        if chain is None:
            return NOTHING
        found: list[int] = []
        data = np.ascontiguousarray(request.token_ids, np.int32).data.cast("B")
        for number in range(limit):
            if number + 1 == len(chain):
                self._hasher.extend(chain, data, 0, number + 1)
            block = self._pool.find(chain[number + 1])
            if block is None:
                break
            found.append(block)
        count = len(found)
        self._chain[row] = chain
        self.hits[row] = self._offered[row] = count
        self._due[row] = (count + 1) * self._size
        return np.array(found, np.intp)

    def _chain_of(self, request: Request) -> list[bytes] | None:
        """The request's digests, kept while it lives; None if it cannot be hashed and thus shares nothing."""
        chain = self._chains.get(request.handle)
        if chain is None:
            try:
                chain = self._chains[request.handle] = [self._hasher.seed(request)]
            except TypeError:
                return None
        return chain

    def leave(self, row: int) -> None:
        """The row is free."""
        self.hits[row] = 0
        self._due[row] = NEVER

    def forget(self, handle: int) -> None:
        """The request ended."""
        self._chains.pop(handle, None)

    def reset(self) -> bool:
        """Nothing is found any more, nor what rows in use go on to compute. True if no block was in use."""
        self._due.fill(NEVER)
        return self._pool.clear()

    # ------------------------------------------------------------------ offering
    def offer_row(self, rows: Rows, table: I32, row: int, num_known: int) -> BlockIds:
        """Offer what is full of one row; returns the blocks."""
        if num_known < self._due[row]:
            return NOTHING
        chain, first, stop = self._chain[row], int(self._offered[row]), num_known // self._size
        known = len(chain) - 1
        if known < stop:
            tokens = rows.token_ids[row, known * self._size : stop * self._size]
            self._hasher.extend(chain, tokens.data.cast("B"), known, stop)
        blocks = table[row, first:stop].astype(np.intp)
        self._pool.cache(blocks, chain[first + 1 : stop + 1])
        self._offered[row] = stop
        self._due[row] = (stop + 1) * self._size
        return blocks

    def offer(self, rows: Rows, table: I32, which: Index, num_known: I32) -> BlockIds:
        """Offer what is full of the rows `which`, or of some of them; returns the blocks."""
        due = (num_known >= self._due[which]).nonzero()[0]
        if len(due) == 0:
            return NOTHING
        # Rows in step with each other all fill a block at once: thrice the mean rate spreads that over a few steps.
        due = due[: 16 + 3 * len(which) // self._size]
        row, stop = which[due], num_known[due] // self._size
        first = self._offered[row]
        chains = [self._chain[each] for each in row.tolist()]
        if (stop - first).max() > 1 or [len(chain) for chain in chains] != stop.tolist():
            known = num_known[due].tolist()
            parts = [
                self.offer_row(rows, table, *each) for each in zip(row.tolist(), known, strict=True)
            ]
            return np.concatenate(parts)
        # The usual case: one block each, of tokens that came since the digests before it were made.
        tokens = rows.token_ids[row[:, None], (first * self._size)[:, None] + self._offsets]
        blocks = table[row, first].astype(np.intp)
        self._pool.cache(blocks, self._hasher.extend_each(chains, tokens.tobytes()))
        self._offered[row] = stop
        self._due[row] = (stop + 1) * self._size
        return blocks
