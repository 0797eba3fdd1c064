"""Which blocks each row holds, for all KV groups that have blocks. Engine process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.rows import Index

NO_BLOCKS = NewBlocks(NO_ROWS, NO_ROWS, NO_ROWS)


class BlockTables:
    """Block ids in columns over rows (S); one table serves all groups.

    ids i32[S, max_blocks]: block ids in order; count i32[S]: how many; capacity i32[S]: tokens they hold.

    `kinds`: of the KV groups; those that are "recurrent" have no blocks.
    """

    def __init__(
        self,
        num_rows: int,
        max_blocks: int,
        block_size: int,
        pool: BlockPool,
        kinds: Sequence[str],
    ) -> None:
        self._size = block_size
        self._pool = pool
        self._num_groups = len(kinds)
        self._with_blocks = [number for number, kind in enumerate(kinds) if kind != "recurrent"]
        self.ids = np.zeros((num_rows, max_blocks), np.int32)
        self._count = np.zeros(num_rows, np.int32)
        self._capacity = np.zeros(num_rows, np.int32)

    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        """Blocks for `num_tokens[i]` tokens of each row, or None, and nothing changed, if there are not enough."""
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
        """As `grow`, for one row; returns the ids that were added."""
        want = -(-num_tokens // self._size) - int(self._count[row])
        blocks = self._pool.take(max(want, 0))
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

    def _new_blocks(self, row: Index, blocks: BlockIds) -> NewBlocks:
        """The same blocks for every KV group that has any."""
        count = len(blocks)
        groups = len(self._with_blocks)
        if count == 0 or groups == 0:
            return NO_BLOCKS
        rows = row.astype(np.int32)
        ids = blocks.astype(np.int32)
        if self._num_groups == 1:
            return NewBlocks(rows, np.zeros(count, np.int32), ids)
        group = np.array(self._with_blocks, np.int32)
        return NewBlocks(
            np.tile(rows, groups),
            np.repeat(group, count),
            np.tile(ids, groups),
        )

    def blocks(self, row: int) -> I32:
        """The row's blocks, in order (a view)."""
        count = self._count[row]
        blocks: I32 = self.ids[row, :count]
        return blocks

    def by_group(self, row: int) -> list[I32]:
        """The row's table in each KV group (a copy)."""
        tables = [NO_ROWS] * self._num_groups
        blocks = self.blocks(row).copy()
        for group in self._with_blocks:
            tables[group] = blocks
        return tables

    def clear(self, row: int) -> None:
        """The row holds no block any more; the pool is the caller's."""
        self._count[row] = 0
        self._capacity[row] = 0
