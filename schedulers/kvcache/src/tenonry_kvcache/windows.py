"""Block tables of rows for several KV groups; blocks behind a sliding window are released. Engine process.

The groups share one pool: a block belongs to one of them at a time. A row's table in a "sliding" group keeps its
places, but those wholly before the window of the row's next token are *past*: their blocks are released when the row
next needs a block, before an allocation, so that the blocks of a decoding row are bounded. Steps run in order: a step
may write blocks that it no longer reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.kv_cache import KVCacheGroup, window_blocks
from tenonry.request import Request
from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.hashing import Chain
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_kvcache.prefix import NO_BLOCK_IDS, PrefixCache
from tenonry_kvcache.tables import NO_BLOCKS, Hits
from tenonry_scheduling import Rows
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.rows import Index


class GroupTable:
    """The table of one group, in columns over rows (S).

    ids i32[S, max_blocks]: block ids in order; count i32[S]: places in use; past i32[S]: leading places without blocks.
    `number`: number of the group. `mark`: distinguishes digests of groups.
    """

    def __init__(
        self, number: int, group: KVCacheGroup, num_rows: int, max_blocks: int, mark: bytes
    ) -> None:
        self.number = number
        self.window = group.window if group.kind == "sliding" else 0
        self.mark = mark
        self.ids = np.zeros((num_rows, max_blocks), np.int32)
        self.count = np.zeros(num_rows, np.int32)
        self.past = np.zeros(num_rows, np.int32)

    def held(self, row: int) -> I32:
        """Blocks of the row, in order (a view)."""
        blocks: I32 = self.ids[row, self.past[row] : self.count[row]]
        return blocks

    def append(self, rows: Index, want: I32, blocks: BlockIds) -> Index:
        """Append the next `want[i]` of `blocks` to each row; returns the row of each block."""
        owner = np.repeat(rows, want)
        before = np.cumsum(want) - want
        shift = np.repeat(self.count[rows] - before, want)
        self.ids[owner, np.arange(len(owner)) + shift] = blocks
        self.count[rows] += want
        return owner

    def take_past(self, rows: Index, first: I32) -> BlockIds:
        """Remove and return the blocks before place `first[i]` of each of the distinct `rows`."""
        past = self.past[rows]
        count = np.maximum(first - past, 0)
        total = int(count.sum())
        if total == 0:
            return NO_BLOCK_IDS
        owner = np.repeat(rows, count)
        shift = np.repeat(past - (np.cumsum(count) - count), count)
        blocks: BlockIds = self.ids[owner, np.arange(total) + shift].astype(np.intp)
        self.past[rows] = past + count
        return blocks


class WindowTables:
    """Block tables of all groups that have blocks, with the interface of `BlockTables`.

    capacity i32[S]: tokens that a row's blocks hold in every group, set by its first reservation. `chunk`: maximum
    tokens of a row in one step.
    """

    def __init__(
        self,
        num_rows: int,
        max_blocks: int,
        block_size: int,
        pool: BlockPool,
        groups: Sequence[KVCacheGroup],
        chunk: int,
    ) -> None:
        self._size = block_size
        self._pool = pool
        self._chunk = chunk
        self._num_groups = len(groups)
        self._tables = [
            GroupTable(number, group, num_rows, max_blocks, mark=b"%d" % number)
            for number, group in enumerate(groups)
            if group.kind != "recurrent"
        ]
        self._capacity = np.zeros(num_rows, np.int32)

    def attach(self, rows: Rows) -> None:
        """Set the scheduler's columns; called once."""
        self._rows = rows

    # ------------------------------------------------------------------ growing
    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        """Allocate blocks for `num_tokens[i]` tokens of each row; None, without a change, if there are not enough."""
        short = (num_tokens > self._capacity[rows]).nonzero()[0]
        if len(short) == 0:
            return NO_BLOCKS
        rows = rows[short]
        self._give_back(rows)
        blocks = -(-num_tokens[short] // self._size)
        return self._extend(rows, [blocks] * len(self._tables))

    def reserve(self, row: int, num_tokens: int, end: int) -> bool:
        """Allocate blocks for all `num_tokens` tokens, in sliding groups only up to `end`, as needed by this step;
        False, without a change, unless blocks for all tokens are free.
        """
        rows = np.array([row])
        wanted = []
        later = 0
        for table in self._tables:
            blocks = -(-num_tokens // self._size)
            if table.window:
                most = window_blocks(table.window, self._size, self._chunk)
                held = len(table.held(row))
                now = -(-end // self._size)
                taken = now - int(table.count[row])
                needed = min(blocks, most)
                later += max(0, needed - held - taken)
                blocks = now
            place = np.array([blocks], np.int32)
            wanted.append(place)
        return self._extend(rows, wanted, spare=later) is not None

    def _extend(self, rows: Index, blocks: Sequence[I32], spare: int = 0) -> NewBlocks | None:
        """Allocate `blocks[g][i]` places of each row in each group; None unless `spare` blocks remain."""
        wants = []
        for table, of_group in zip(self._tables, blocks, strict=True):
            missing = of_group - table.count[rows]
            wants.append(np.maximum(missing, 0))
        totals = [int(want.sum()) for want in wants]
        total = sum(totals)
        if total + spare > self._pool.num_free:
            return None
        taken = self._pool.take(total)
        if taken is None:
            return None
        owners = []
        start = 0
        for table, want, count in zip(self._tables, wants, totals, strict=True):
            stop = start + count
            owner = table.append(rows, want, taken[start:stop])
            owners.append(owner)
            start = stop
        counts = [table.count[rows] for table in self._tables]
        fewest = np.min(counts, axis=0)
        self._capacity[rows] = fewest * self._size
        numbers = [table.number for table in self._tables]
        return NewBlocks(
            np.concatenate(owners).astype(np.int32),
            np.repeat(np.array(numbers, np.int32), totals),
            taken.astype(np.int32),
        )

    def _give_back(self, rows: Index) -> None:
        """Release the blocks wholly before the window of each row's next token."""
        start = self._rows.num_computed[rows]
        for table in self._tables:
            if table.window:
                first = self._first_place(start, table.window)
                self._release(table.take_past(rows, first))

    def _first_place(self, start: I32, window: int) -> I32:
        """First place in the window of the token at `start`."""
        first: I32 = np.maximum(start - window + 1, 0) // self._size
        return first

    def _release(self, blocks: BlockIds) -> None:
        """As `BlockPool.release`, for blocks that several of the rows may share."""
        while len(blocks):
            distinct, places = np.unique(blocks, return_index=True)
            if len(distinct) == len(blocks):
                self._pool.release(blocks)
                return
            self._pool.release(distinct)
            blocks = np.delete(blocks, places)

    # ------------------------------------------------------------------ tables
    def blocks(self, row: int) -> I32:
        """Blocks of the row in all groups."""
        return np.concatenate([table.held(row) for table in self._tables])

    def by_group(self, row: int) -> list[I32]:
        """Table of the row in each KV group (a copy)."""
        tables = [NO_ROWS] * self._num_groups
        for table in self._tables:
            tables[table.number] = table.ids[row, : table.count[row]].copy()
        return tables

    def clear(self, row: int) -> None:
        """Clear the row's tables; the caller returns the blocks to the pool."""
        for table in self._tables:
            table.count[row] = 0
            table.past[row] = 0

    # ------------------------------------------------------------------ the prefix cache
    def find(self, prefix: PrefixCache, request: Request, limit: int) -> Hits:
        """Return prefixes of at most `limit` blocks with everything cached in the window of their next token.

        Groups with full attention need all blocks, sliding ones those that the window reaches.
        """
        chain = prefix.chain(request)
        cached: list[list[int | None]] = [[] for _ in self._tables]
        for digest in prefix.digests(request, limit):
            found = []
            is_lost = False
            for table in self._tables:
                block = self._pool.find(digest + table.mark)
                found.append(block)
                is_lost |= block is None and not table.window
            if is_lost:
                break
            for blocks, block in zip(cached, found, strict=True):
                blocks.append(block)
        lengths = np.arange(len(cached[0]) + 1)
        is_whole = lengths > 0
        for table, blocks in zip(self._tables, cached, strict=True):
            if not table.window:
                continue
            before = np.zeros_like(lengths)  # number of missing ones among the first i
            is_missing = [block is None for block in blocks]
            before[1:] = np.cumsum(is_missing)
            first = self._first_place(lengths * self._size, table.window)
            is_whole &= before == before[first]
        longest_first = lengths[is_whole][::-1]
        return Hits(chain, longest_first.tolist(), cached)

    def share(self, row: int, hits: Hits, count: int) -> None:
        """Start the row with those of the first `count` blocks that it will read."""
        start = np.array(count * self._size)
        for table, blocks in zip(self._tables, hits.blocks, strict=True):
            first = 0
            if table.window:
                first = int(self._first_place(start, table.window))
            shared = np.array(blocks[first:count], np.intp)
            self._pool.share(shared)
            table.ids[row, :first] = 0
            table.ids[row, first:count] = shared
            table.past[row] = first
            table.count[row] = count

    def cache_row(self, row: int, first: int, stop: int, digests: Sequence[bytes]) -> BlockIds:
        """Cache those of the row's blocks [first, stop) that it still holds; returns them."""
        parts = []
        for table in self._tables:
            held = max(first, int(table.past[row]))
            blocks = table.ids[row, held:stop].astype(np.intp)
            names = [digest + table.mark for digest in digests[held - first :]]
            self._pool.cache(blocks, names)
            parts.append(blocks)
        return np.concatenate(parts)

    def cache_each(self, rows: Index, places: I32, digests: Sequence[bytes]) -> BlockIds:
        """Cache one block of each row, if held; returns those."""
        parts = []
        for table in self._tables:
            held = (places >= table.past[rows]).nonzero()[0]
            blocks = table.ids[rows[held], places[held]].astype(np.intp)
            names = [digests[i] + table.mark for i in held.tolist()]
            self._pool.cache(blocks, names)
            parts.append(blocks)
        return np.concatenate(parts)

    def forget(self, chain: Chain) -> None:
        """Remove blocks of these prefixes from the cache, used or released."""
        for table in self._tables:
            found = [self._pool.find(digest + table.mark) for digest in chain]
            blocks = [block for block in found if block is not None]
            self._pool.forget(np.array(blocks, np.intp))
