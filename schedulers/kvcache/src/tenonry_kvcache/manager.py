"""KV blocks by row: block tables, and who is asked for what is there already. Engine process.

All KV groups of a model are allocated together: block `i` of one group and block `i` of every other one hold the same
tokens, so one pool, one table and one hash serve them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request
from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.hashing import BlockHasher
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_kvcache.prefix import NOTHING, PrefixCache
from tenonry_kvcache.transfers import Transfers
from tenonry_scheduling import BlockManager, Match, Rows
from tenonry_scheduling.blocks import NewBlocks, Transferred
from tenonry_scheduling.rows import Index

TRANSFER_TIMEOUT_S = 300.0
NO_BLOCKS = NewBlocks(NO_ROWS, NO_ROWS, NO_ROWS)


class KVCacheManager(BlockManager):
    """Blocks of all rows, in columns over rows (S).

    table i32[S, max_blocks]: block ids in order; count i32[S]: how many; capacity i32[S]: tokens they hold.

    `seed` makes digests the same in every process that uses it; by default each process draws its own. A KV load that
    has not ended after `transfer_timeout` seconds counts as failed; see `tenonry_kvcache.transfers`.
    """

    def __init__(
        self,
        context: SchedulerContext,
        seed: str | None = None,
        transfer_timeout: float = TRANSFER_TIMEOUT_S,
    ) -> None:
        size, self._num_groups = context.kv_cache.block_size, len(context.kv_cache.groups)
        num_rows, width = context.config.max_num_seqs, -(-context.max_model_len // size)
        self._size = size
        self._pool = BlockPool(context.kv_cache.num_blocks)
        self._prefix = PrefixCache(num_rows, size, self._pool, BlockHasher(size, seed))
        name = context.config.kv_connector.name if context.config.kv_connector else ""
        depth = context.max_concurrent_steps
        self._transfers = Transfers(
            context.kv_connector, depth, context.clock, transfer_timeout, name
        )
        # The state of a recurrent layer is not a function of one block: nothing can be shared.
        recurrent = any(group.kind == "recurrent" for group in context.kv_cache.groups)
        self._caching = context.config.enable_prefix_caching and not recurrent
        self._table = np.zeros((num_rows, width), np.int32)
        self._count, self._capacity = np.zeros(num_rows, np.int32), np.zeros(num_rows, np.int32)
        self._looked_up = [(0, 0)] * num_rows  # (queries, hits) that a row added to the counts
        self._queries = self._hits = 0

    def attach(self, rows: Rows) -> None:
        self._rows = rows

    # ------------------------------------------------------------------ entering
    def match(self, request: Request, row: int) -> Match | None:
        limit = (request.num_tokens - 1) // self._size  # a hit never covers the last token
        if request.source.sampling_params.prompt_logprobs is not None:
            limit = 0  # every position has to be computed to have its log-probability
        blocks = self._prefix.enter(request, row, limit) if self._caching else NOTHING
        num_hits = len(blocks) * self._size
        extra, wait = (
            self._transfers.match(request, num_hits, limit * self._size) if limit else (0, False)
        )
        if extra is None:
            self._prefix.leave(row)
            return None
        if num_hits:
            self._pool.share(blocks)
            self._add(row, 0, blocks)
        extra -= extra % self._size
        if extra and self._grow_row(row, num_hits + extra) is None:
            extra = 0  # no room to load, and thus none to compute either: the caller will find out
        if extra:
            self._transfers.promise(request, row, num_hits, extra, wait=wait)
        if request.num_preemptions == 0 and self._caching:
            self._count_lookup(row, request.num_tokens, num_hits + extra)
        return Match(num_hits + extra, ready=not (extra and wait))

    def _count_lookup(self, row: int, queries: int, hits: int) -> None:
        self._looked_up[row] = (queries, hits)
        self._queries += queries
        self._hits += hits

    # ------------------------------------------------------------------ growing
    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        if len(rows) == 1:
            one = self._grow_row(int(rows[0]), int(num_tokens[0]))
            return None if one is None else self._announce(np.repeat(rows, len(one)), one)
        short = (num_tokens > self._capacity[rows]).nonzero()[0]
        if len(short) == 0:
            return NO_BLOCKS
        rows = rows[short]
        have = self._count[rows]
        want = -(-num_tokens[short] // self._size) - have
        total = int(want.sum())
        blocks = self._pool.take(total)
        if blocks is None:
            return None
        if total == len(rows):
            row, place = rows, have
        else:
            row = np.repeat(rows, want)
            place = np.arange(total) + np.repeat(have - (np.cumsum(want) - want), want)
        self._table[row, place] = blocks
        self._count[rows] = count = have + want
        self._capacity[rows] = count * self._size
        return self._announce(row, blocks)

    def _grow_row(self, row: int, num_tokens: int) -> BlockIds | None:
        have = int(self._count[row])
        blocks = self._pool.take(max(-(-num_tokens // self._size) - have, 0))
        if blocks is not None:
            self._add(row, have, blocks)
        return blocks

    def _add(self, row: int, have: int, blocks: BlockIds) -> None:
        count = have + len(blocks)
        self._table[row, have:count] = blocks
        self._count[row] = count
        self._capacity[row] = count * self._size

    def _announce(self, row: Index, blocks: BlockIds) -> NewBlocks:
        count, groups = len(blocks), self._num_groups
        if count == 0:
            return NO_BLOCKS
        rows, ids = row.astype(np.int32), blocks.astype(np.int32)
        if groups == 1:
            return NewBlocks(rows, np.zeros(count, np.int32), ids)
        group = np.repeat(np.arange(groups, dtype=np.int32), count)
        return NewBlocks(np.tile(rows, groups), group, np.tile(ids, groups))

    def table(self, row: int) -> tuple[I32, ...]:
        return (self._blocks(row).copy(),) * self._num_groups

    def _blocks(self, row: int) -> I32:
        blocks: I32 = self._table[row, : self._count[row]]
        return blocks

    # ------------------------------------------------------------------ the prefix cache
    def register(self, rows: Index, num_known: I32) -> None:
        if len(rows) == 1:
            blocks = self._prefix.offer_row(
                self._rows, self._table, int(rows[0]), int(num_known[0])
            )
        else:
            blocks = self._prefix.offer(self._rows, self._table, rows, num_known)
        self._transfers.cached(blocks)

    def reset(self) -> bool:
        """Also forgets what rows in use computed: their contents may be of weights that are no more."""
        return self._prefix.reset()

    # ------------------------------------------------------------------ leaving
    def free(
        self, request: Request, row: int, *, num_known: int, drop: bool = False
    ) -> dict[str, Any] | None:
        blocks = self._blocks(row).astype(np.intp)
        if drop:
            self._pool.forget(
                blocks
            )  # those that it found in the cache, too: one of them may be the cause
        else:
            self._transfers.cached(self._prefix.offer_row(self._rows, self._table, row, num_known))
        if num_known == 0:
            queries, hits = self._looked_up[row]
            self._queries, self._hits = self._queries - queries, self._hits - hits
        keep, parameters = self._transfers.withdraw(request, row), None
        if request.is_finished:
            full = 0 if drop else num_known // self._size
            wanted, parameters = self._transfers.finished(request, blocks[:full])
            keep |= wanted
        if keep:
            self._transfers.keep(request.handle, blocks)
        elif len(blocks):
            self._pool.release(blocks)
        self._count[row] = self._capacity[row] = 0
        self._looked_up[row] = (0, 0)
        self._prefix.leave(row)
        return parameters

    def forget(self, request: Request) -> None:
        self._prefix.forget(request.handle)
        self._transfers.forget(request.handle)

    # ------------------------------------------------------------------ the KV connector
    def transfers(self, done: Iterable[int], failed: Iterable[int]) -> Transferred:
        result = Transferred([], [])
        for handle in done:
            self._end_transfer(handle, result, worked=True)
        for handle in failed:
            self._end_transfer(handle, result, worked=False)
        result.lost.extend(row for row in self._transfers.overdue() if row not in result.lost)
        return result

    def _end_transfer(self, handle: int, result: Transferred, *, worked: bool) -> None:
        books = self._transfers
        if handle in books.loading:
            load = books.loading.pop(handle)
            result.arrived.append((load.row, load.after if worked else load.before))
            if not worked:
                books.fail(handle)
        elif handle in books.kept:
            self._pool.release(books.give_back(handle))
        elif not worked:
            result.lost.extend(row for row in self._disown(handle) if row not in result.lost)

    def _disown(self, handle: int) -> list[int]:
        """Forget what may come from a load that failed; returns the rows that may have read it."""
        load = self._transfers.disown(handle)
        if load is None:
            return []
        loader, blocks = load
        self._pool.forget(blocks)
        suspect = np.zeros(self._pool.num_blocks, np.bool_)
        suspect[blocks] = True
        hits = self._prefix.hits
        lost = [
            row
            for row in hits.nonzero()[0].tolist()
            if suspect[self._table[row, : hits[row]]].any()
        ]
        for waiting, other in self._transfers.loading.items():
            if other.row in lost:
                self._transfers.fail(
                    waiting
                )  # a second load could not be told from the one under way
        if loader < 0:
            return lost
        self._transfers.fail(handle)
        return [loader, *(row for row in lost if row != loader)]

    def connector_metadata(self) -> Any:
        return self._transfers.end_step(lambda row: self._blocks(row).tolist())

    @property
    def waits(self) -> bool:
        return self._transfers.wait

    # ------------------------------------------------------------------ numbers
    @property
    def num_free(self) -> int:
        return self._pool.num_free

    @property
    def num_total(self) -> int:
        return self._pool.num_blocks

    def take_counts(self) -> tuple[int, int]:
        counts = (
            max(self._queries, 0),
            max(self._hits, 0),
        )  # a start that was undone may have been told already
        self._queries = self._hits = 0
        return counts
