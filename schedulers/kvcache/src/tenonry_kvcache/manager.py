"""KV blocks by row: block tables, the prefix cache, and the only caller of a KV connector. Engine process.

All KV groups of a model are allocated together: block `i` of one group and block `i` of every other one hold the same
tokens, so one pool, one table and one hash serve them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request
from tenonry.scheduling import BlockManager, Match, Rows
from tenonry.scheduling.blocks import NewBlocks, Transferred
from tenonry.scheduling.rows import Index
from tenonry.step import I32, NO_ROWS
from tenonry_kvcache.hashing import BlockHasher
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_kvcache.transfers import Transfers

NEVER = np.iinfo(np.int32).max
NO_BLOCKS = NewBlocks(NO_ROWS, NO_ROWS, NO_ROWS)


class KVCacheManager(BlockManager):
    """Blocks of all rows, in columns over rows (S).

    table i32[S, max_blocks]: block ids in order; count i32[S]: how many; capacity i32[S]: tokens they hold; cached
    i32[S]: leading blocks that were offered to the prefix cache (or came from it); due i32[S]: known tokens from which
    the next block can be offered; own i32[S]: leading blocks that came from the prefix cache.

    `seed` makes digests the same in every process that uses it; by default each process draws its own.
    """

    def __init__(self, context: SchedulerContext, seed: str | None = None) -> None:
        size, self._num_groups = context.kv_cache.block_size, len(context.kv_cache.groups)
        rows, width = context.config.max_num_seqs, -(-context.max_model_len // size)
        self._size = size
        self._pool = BlockPool(context.kv_cache.num_blocks)
        self._hasher = BlockHasher(size, seed)
        self._transfers = Transfers(context.kv_connector, context.max_concurrent_steps)
        # The state of a recurrent layer is not a function of one block: nothing can be shared.
        recurrent = any(group.kind == "recurrent" for group in context.kv_cache.groups)
        self._caching = context.config.enable_prefix_caching and not recurrent
        self._table = np.zeros((rows, width), np.int32)
        self._count, self._capacity, self._cached, self._own = (np.zeros(rows, np.int32) for _ in range(4))
        self._due = np.full(rows, NEVER, np.int32)
        self._offsets = np.arange(size)
        self._chains: dict[int, list[bytes]] = {}  # handle → seed, and the digest of each block known so far
        self._chain: list[list[bytes]] = [[] for _ in range(rows)]
        self._looked_up = [(0, 0)] * rows  # (queries, hits) that a row added to the counts
        self._queries = self._hits = 0

    def attach(self, rows: Rows) -> None:
        self._rows = rows

    # ------------------------------------------------------------------ entering
    def match(self, request: Request, row: int) -> Match | None:
        limit = (request.num_tokens - 1) // self._size  # a hit never covers the last token
        self._looked_up[row] = (0, 0)
        blocks = self._find_prefix(request, row, limit)
        num_hits = len(blocks) * self._size
        extra, wait = self._transfers.match(request, num_hits, limit * self._size)
        if extra is None:
            return None
        self._attach(row, blocks)
        extra -= extra % self._size
        if extra and self._grow_row(row, num_hits + extra) is None:
            extra = 0  # no room to load, and thus none to compute either: the caller will find out
        if extra:
            self._transfers.promise(request, row, num_hits, extra, wait=wait)
        if request.num_preemptions == 0 and self._caching:
            self._count_lookup(row, request.num_tokens, num_hits + extra)
        return Match(num_hits + extra, ready=not (extra and wait))

    def _find_prefix(self, request: Request, row: int, limit: int) -> BlockIds:
        """Cached blocks of the longest known prefix, at most `limit`; digests are computed up to the first miss."""
        chain = self._chain_of(request) if self._caching else None
        self._due[row] = NEVER
        found: list[int] = []
        if chain is not None:
            self._chain[row] = chain
            self._due[row] = self._size
            if request.source.sampling_params.prompt_logprobs is None:
                data = memoryview(np.ascontiguousarray(request.token_ids, np.int32)).cast("B")
                for number in range(limit):
                    if number + 1 == len(chain):
                        self._hasher.extend(chain, data, 0, number + 1)
                    block = self._pool.find(chain[number + 1])
                    if block is None:
                        break
                    found.append(block)
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

    def _attach(self, row: int, blocks: BlockIds) -> None:
        count = len(blocks)
        if count:
            self._pool.share(blocks)
            self._table[row, :count] = blocks
            if self._due[row] != NEVER:
                self._due[row] = (count + 1) * self._size
        self._count[row] = self._cached[row] = self._own[row] = count
        self._capacity[row] = count * self._size

    def _count_lookup(self, row: int, queries: int, hits: int) -> None:
        self._looked_up[row] = (queries, hits)
        self._queries += queries
        self._hits += hits

    # ------------------------------------------------------------------ growing
    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        if len(rows) == 1:
            row = int(rows[0])
            blocks = self._grow_row(row, int(num_tokens[0]))
            return None if blocks is None else self._announce(np.repeat(rows, len(blocks)), blocks)
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
        want = max(-(-num_tokens // self._size), have)
        blocks = self._pool.take(want - have)
        if blocks is not None:
            self._table[row, have:want] = blocks
            self._count[row] = want
            self._capacity[row] = want * self._size
        return blocks

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
        blocks = self._table[row, : self._count[row]].copy()
        return (blocks,) * self._num_groups

    # ------------------------------------------------------------------ the prefix cache
    def register(self, rows: Index, num_known: I32) -> None:
        if len(rows) == 1:
            row, known = int(rows[0]), int(num_known[0])
            if known >= self._due[row]:
                self._cache_row(row, int(self._cached[row]), known // self._size)
            return
        due = (num_known >= self._due[rows]).nonzero()[0]
        if len(due) == 0:
            return
        # Rows in step with each other all fill a block at once: thrice the mean rate spreads that over a few steps.
        due = due[: 16 + 3 * len(rows) // self._size]
        row, first = rows[due], self._cached[rows[due]]
        stop = num_known[due] // self._size
        chains = [self._chain[each] for each in row.tolist()]
        if (stop - first).max() > 1 or [len(chain) for chain in chains] != stop.tolist():
            for each, begin, end in zip(row.tolist(), first.tolist(), stop.tolist(), strict=True):
                self._cache_row(each, begin, end)
            return
        # The usual case: one block each, of tokens that came since the digests before it were made.
        tokens = self._rows.token_ids[row[:, None], (first * self._size)[:, None] + self._offsets]
        blocks = self._table[row, first].astype(np.intp)
        self._cache(blocks, self._hasher.extend_each(chains, tokens.tobytes()))
        self._cached[row] = stop
        self._due[row] = (stop + 1) * self._size

    def _cache_row(self, row: int, first: int, stop: int) -> None:
        """Offer blocks `first` … `stop`−1 of one row to the prefix cache."""
        chain = self._chain[row]
        known = len(chain) - 1
        if known < stop:
            tokens = self._rows.token_ids[row, known * self._size : stop * self._size]
            self._hasher.extend(chain, memoryview(tokens).cast("B"), known, stop)
        self._cache(self._table[row, first:stop].astype(np.intp), chain[first + 1 : stop + 1])
        self._cached[row] = stop
        self._due[row] = (stop + 1) * self._size

    def _cache(self, blocks: BlockIds, digests: list[bytes]) -> None:
        self._pool.cache(blocks, digests)
        self._transfers.cached(blocks)

    def reset(self) -> bool:
        """Also forgets what rows in use computed: their contents may be of weights that are no more."""
        self._hasher.renew()
        self._chains.clear()
        self._due.fill(NEVER)
        return self._pool.clear()

    # ------------------------------------------------------------------ leaving
    def free(self, request: Request, row: int, *, num_known: int, drop: bool = False) -> dict[str, Any] | None:
        blocks = self._table[row, : self._count[row]].astype(np.intp)
        if drop:
            self._pool.forget(blocks[int(self._own[row]) :])
        elif num_known >= self._due[row]:
            self._cache_row(row, int(self._cached[row]), num_known // self._size)
        if num_known == 0:
            queries, hits = self._looked_up[row]
            self._queries, self._hits = self._queries - queries, self._hits - hits
        keep, parameters = self._transfers.withdraw(request, row), None
        if request.is_finished:
            wanted, parameters = self._transfers.finished(request, blocks.tolist())
            keep |= wanted
        if keep:
            self._transfers.kept[request.handle] = blocks
        else:
            self._pool.release(blocks)
        self._count[row] = self._capacity[row] = self._own[row] = 0
        self._due[row] = NEVER
        return parameters

    def forget(self, request: Request) -> None:
        self._chains.pop(request.handle, None)
        self._transfers.forget(request.handle)

    # ------------------------------------------------------------------ the KV connector
    def transfers(self, done: Iterable[int], failed: Iterable[int]) -> Transferred:
        result = Transferred([], [])
        for handle in done:
            self._end_transfer(handle, result, worked=True)
        for handle in failed:
            self._end_transfer(handle, result, worked=False)
        return result

    def _end_transfer(self, handle: int, result: Transferred, *, worked: bool) -> None:
        books = self._transfers
        if handle in books.loading:
            row, before, after = books.loading.pop(handle)
            result.arrived.append((row, after if worked else before))
            if not worked:
                books.fail(handle)
        elif handle in books.kept:
            self._pool.release(books.kept.pop(handle))
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
        rows = self._own.nonzero()[0].tolist()
        lost = [row for row in rows if suspect[self._table[row, : self._own[row]]].any()]
        for waiting, (row, _, _) in self._transfers.loading.items():
            if row in lost:
                self._transfers.fail(waiting)  # a second load could not be told from the one under way
        if loader < 0:
            return lost
        self._transfers.fail(handle)
        return [loader, *(row for row in lost if row != loader)]

    def connector_metadata(self) -> Any:
        return self._transfers.end_step(lambda row: self._table[row, : self._count[row]].tolist())

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
        counts = max(self._queries, 0), max(self._hits, 0)  # a start that was undone may have been told already
        self._queries = self._hits = 0
        return counts
