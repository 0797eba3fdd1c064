"""Block tables of rows, for models with one KV group that has blocks. Engine process.

`tenonry_kvcache.windows` does the same for several groups, and for groups that release blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tenonry.request import Request
from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.hashing import Chain
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_kvcache.prefix import PrefixCache
from tenonry_scheduling import Rows
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.rows import Index

NO_BLOCKS = NewBlocks(NO_ROWS, NO_ROWS, NO_ROWS)


class Hits(NamedTuple):
    """Cached part of a request: its digests, possible numbers of initial blocks, largest first, and the blocks.

    `blocks` belong to the table that found them.
    """

    chain: Chain
    lengths: Iterable[int]
    blocks: Any


class BlockTables:
    """Block ids in columns over rows (S).

    ids i32[S, max_blocks]: block ids in order; count i32[S]: how many; capacity i32[S]: tokens they hold, set by the
    row's first reservation.

    `kinds`: kinds of the KV groups; "recurrent" ones have no blocks, and at most one has.
    """

    def __init__(
        self, num_rows: int, max_blocks: int, block_size: int, pool: BlockPool, kinds: Sequence[str]
    ) -> None:
        self._size = block_size
        self._pool = pool
        self._num_groups = len(kinds)
        with_blocks = [number for number, kind in enumerate(kinds) if kind != "recurrent"]
        self._group = with_blocks[0] if with_blocks else None
        self.ids = np.zeros((num_rows, max_blocks), np.int32)
        self._count = np.zeros(num_rows, np.int32)
        self._capacity = np.zeros(num_rows, np.int32)

    def attach(self, rows: Rows) -> None:
        """Do nothing: the scheduler's columns are not needed."""

    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        """Allocate blocks for `num_tokens[i]` tokens of each row; None, without a change, if there are not enough."""
        if len(rows) == 1:
            row = int(rows[0])
            wanted = int(num_tokens[0])
            if wanted <= self._capacity[row]:
                return NO_BLOCKS
            blocks = self.grow_row(row, wanted)
            if blocks is None:
                return None
            return self._new_blocks(np.repeat(rows, len(blocks)), blocks)
        is_short = num_tokens > self._capacity[rows]
        short = is_short.nonzero()[0]
        if len(short) == 0:
            return NO_BLOCKS
        rows = rows[short]
        have = self._count[rows]
        want = -(-num_tokens[short] // self._size) - have
        total = int(want.sum())
        blocks = self._pool.take(total)
        if blocks is None:
            return None
        if total == len(rows):  # one block each, the usual case
            owner = rows
            place = have
        else:
            owner = np.repeat(rows, want)
            before = np.cumsum(want) - want
            place = np.arange(total) + np.repeat(have - before, want)
        count = have + want
        self.ids[owner, place] = blocks
        self._count[rows] = count
        self._capacity[rows] = count * self._size
        return self._new_blocks(owner, blocks)

    def grow_row(self, row: int, num_tokens: int) -> BlockIds | None:
        """As `grow`, for one row; returns the added ids."""
        want = -(-num_tokens // self._size) - int(self._count[row])
        blocks = self._pool.take(want)
        if blocks is not None:
            self.add(row, blocks)
        return blocks

    def add(self, row: int, blocks: BlockIds) -> None:
        """Append blocks that the row holds already."""
        have = int(self._count[row])
        count = have + len(blocks)
        self.ids[row, have:count] = blocks
        self._count[row] = count
        self._capacity[row] = count * self._size

    def reserve(self, row: int, num_tokens: int, end: int) -> bool:
        """Allocate blocks for all `num_tokens` tokens of the row; False, without a change, if there are not enough."""
        return self.grow_row(row, num_tokens) is not None

    def _new_blocks(self, row: Index, blocks: BlockIds) -> NewBlocks:
        """Return the blocks as those of the group with blocks."""
        count = len(blocks)
        if count == 0 or self._group is None:
            return NO_BLOCKS
        return NewBlocks(
            row.astype(np.int32), np.full(count, self._group, np.int32), blocks.astype(np.int32)
        )

    def blocks(self, row: int) -> I32:
        """Blocks of the row, in order (a view)."""
        count = self._count[row]
        blocks: I32 = self.ids[row, :count]
        return blocks

    def by_group(self, row: int) -> list[I32]:
        """Table of the row in each KV group (a copy)."""
        tables = [NO_ROWS] * self._num_groups
        if self._group is not None:
            tables[self._group] = self.blocks(row).copy()
        return tables

    def clear(self, row: int) -> None:
        """Clear the row's table; the caller returns the blocks to the pool."""
        self._count[row] = 0

    # ------------------------------------------------------------------ the prefix cache
    def find(self, prefix: PrefixCache, request: Request, limit: int) -> Hits:
        """Return the cached blocks of the longest known prefix of at most `limit` blocks; any part is usable."""
        chain, blocks = prefix.find(request, limit)
        return Hits(chain, range(len(blocks), 0, -1), blocks)

    def share(self, row: int, hits: Hits, count: int) -> None:
        """Start the row with the first `count` blocks."""
        blocks = hits.blocks[:count]
        self._pool.share(blocks)
        self.add(row, blocks)

    def cache_row(self, row: int, first: int, stop: int, digests: Sequence[bytes]) -> BlockIds:
        """Cache the row's blocks [first, stop); returns them."""
        blocks: BlockIds = self.ids[row, first:stop].astype(np.intp)
        self._pool.cache(blocks, digests)
        return blocks

    def cache_each(self, rows: Index, places: I32, digests: Sequence[bytes]) -> BlockIds:
        """Cache one block of each row; returns them."""
        blocks: BlockIds = self.ids[rows, places].astype(np.intp)
        self._pool.cache(blocks, digests)
        return blocks

    def forget(self, chain: Chain) -> None:
        """No-op: a row holds all of its blocks until it leaves, so none is cached separately."""
