"""KV blocks by row: block tables, the prefix cache and the KV connector behind one interface. Engine process.

All KV groups with blocks share one pool, and one chain of digests names their contents. Recurrent groups have no blocks
but state slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.step import I32
from tenonry_kvcache.hashing import CONNECTOR_SEED, BlockHasher
from tenonry_kvcache.lookups import Lookup, LookupCounts
from tenonry_kvcache.pool import BlockIds, BlockPool
from tenonry_kvcache.prefix import PrefixCache
from tenonry_kvcache.snapshots import StateSnapshots
from tenonry_kvcache.tables import NO_BLOCKS, BlockTables, Hits
from tenonry_kvcache.transfers import LEFT, Transfers, check_movable
from tenonry_kvcache.windows import WindowTables
from tenonry_scheduling import BlockManager, Match, Rows, length_classes
from tenonry_scheduling.blocks import NewBlocks, Transferred
from tenonry_scheduling.rows import Index

TRANSFER_TIMEOUT_S = 300.0
SNAPSHOT_INTERVAL = 512  # tokens


class KVCacheManager(BlockManager):
    """Block tables of all rows, prefix cache, and KV transfers.

    `seed` makes digests equal across processes; by default each process draws its own. A KV load that has not ended
    after `transfer_timeout` seconds counts as failed; see `tenonry_kvcache.transfers`. A snapshot of recurrent states
    is taken every `snapshot_interval` tokens, rounded up to whole blocks; see `tenonry_kvcache.snapshots`. Raises
    ConfigError for a KV connector combined with groups whose contents are not in blocks.
    """

    def __init__(
        self,
        context: SchedulerContext,
        seed: str | None = None,
        transfer_timeout: float = TRANSFER_TIMEOUT_S,
        snapshot_interval: int = SNAPSHOT_INTERVAL,
    ) -> None:
        config = context.config
        kv_cache = context.kv_cache
        num_rows = config.max_num_seqs
        self._size = kv_cache.block_size
        kinds = [group.kind for group in kv_cache.groups]
        self._with_states = [number for number, kind in enumerate(kinds) if kind == "recurrent"]
        self.pool = BlockPool(kv_cache.num_blocks)
        longest = -(-context.max_model_len // self._size)
        self._most_needed = min(longest, kv_cache.num_blocks)  # by one request
        self._tables = _tables_for(context, self.pool)
        self.prefix = PrefixCache(
            num_rows,
            self._size,
            self.pool,
            BlockHasher(self._size, seed or _seed_for(context), length_classes(kv_cache.groups)),
        )
        self._transfers = Transfers(
            context.kv_connector,
            context.max_concurrent_steps,
            context.clock,
            transfer_timeout,
            config.kv_connector.name if config.kv_connector else "",
        )
        unshared = {"recurrent", "opaque"}.intersection(kinds)
        if context.kv_connector is not None:
            check_movable(kinds)
            context.kv_connector.name_blocks(self.prefix.names)
        rule = length_classes(kv_cache.groups)
        # A returning request may have other digests than before.
        self._is_renamed = rule is not None and rule.restarts
        self._caching = config.enable_prefix_caching
        self._snapshots: StateSnapshots | None = None
        if "opaque" in unshared or (unshared and not kv_cache.num_state_slots):
            self._caching = False
        elif unshared and self._caching:
            num_blocks = -(-snapshot_interval // self._size)
            self._snapshots = StateSnapshots(
                num_rows, kv_cache.num_state_slots, num_blocks * self._size, self._size, self.prefix
            )
        self._lookups = LookupCounts(num_rows)
        self._outdated: set[int] = set()  # rows that computed before the last reset

    def attach(self, rows: Rows) -> None:
        self._rows = rows
        self._tables.attach(rows)
        if self._snapshots is not None:
            self._snapshots.attach(rows)

    # ------------------------------------------------------------------ entering
    def match(self, request: Request, row: int) -> Match | None:
        if self._transfers.kept or self._transfers.is_left_out:
            self._transfers.check_kept(self.pool.num_blocks, self._most_needed)
        max_hits = self._max_hits(request)
        num_blocks = 0
        hits: Hits | None = None
        if self._caching:
            hits = self._tables.find(self.prefix, request, max_hits)
            found = self._choose(request, row, hits)
            if found is None:
                return None
            num_blocks = found
        cached = num_blocks * self._size
        extra, wait = self._transfers.match(request, cached, max_hits * self._size)
        if extra is None:
            self.prefix.leave(row)
            return None
        if hits is not None:
            self._tables.share(row, hits, num_blocks)
        loaded = self._take_for_load(row, cached, extra)
        if loaded:
            self._transfers.promise(request, row, cached, loaded, wait=wait)
        num_computed = cached + loaded
        if request.num_cached_tokens < 0:  # its first start, unless undone
            queries = request.num_tokens if self._caching else 0
            beyond = request.num_tokens - cached if self._transfers.is_used and max_hits else 0
            self._lookups.add(row, Lookup(queries, cached, beyond, loaded))
        self._outdated.discard(row)
        is_ready = not (loaded and wait)
        return Match(num_computed, is_ready)

    def _choose(self, request: Request, row: int, hits: Hits) -> int | None:
        """Number of cached blocks at the start of the row. None: this step takes a longer snapshot."""
        chain = hits.chain
        count = next(iter(hits.lengths), 0)
        snapshots = self._snapshots
        if snapshots is not None:
            num_cached = count
            count = snapshots.longest(chain, hits.lengths)
            if snapshots.is_near(chain, count, num_cached):
                return None
            snapshots.enter(row, chain, count, num_cached, request.num_tokens)
        self.prefix.enter(row, chain, count)
        return count

    def _max_hits(self, request: Request) -> int:
        """Maximum number of cached blocks of the request: never the one with its last token."""
        if request.source.sampling_params.prompt_logprobs is not None:
            return 0  # every position has to be computed for its log-probability
        return (request.num_tokens - 1) // self._size

    def _take_for_load(self, row: int, cached: int, extra: int) -> int:
        """Allocate blocks for whole blocks of `extra` tokens to load; returns the tokens, 0 without enough blocks."""
        loaded = extra - extra % self._size
        end = cached + loaded
        if loaded and not self._tables.reserve(row, end, end):
            return 0  # none are left to compute either, as the caller will detect
        return loaded

    # ------------------------------------------------------------------ growing
    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        return self._tables.grow(rows, num_tokens)

    def reserve(self, row: int, num_tokens: int, end: int) -> bool:
        return self._tables.reserve(row, num_tokens, end)

    def table(self, row: int) -> tuple[I32, ...]:
        tables = self._tables.by_group(row)
        if self._snapshots is not None:
            for group in self._with_states:
                tables[group] = self._snapshots.start_of(row)
        return tuple(tables)

    # ------------------------------------------------------------------ the prefix cache
    def register(self, rows: Index, num_known: I32) -> None:
        if len(rows) == 1:
            blocks = self.prefix.offer_row(
                self._rows, self._tables, int(rows[0]), int(num_known[0])
            )
        else:
            blocks = self.prefix.offer(self._rows, self._tables, rows, num_known)
        self._transfers.cached(blocks)

    # ------------------------------------------------------------------ snapshots of states
    @property
    def takes_snapshots(self) -> bool:
        return self._snapshots is not None

    def cut(self, rows: Index, num_tokens: I32) -> I32:
        if self._snapshots is None:
            return num_tokens
        return self._snapshots.cut(rows, num_tokens)

    def save_states(self, rows: Index, num_tokens: I32) -> NewBlocks:
        if self._snapshots is None:
            return NO_BLOCKS
        saved, slots = self._snapshots.save(rows, num_tokens)
        groups = self._with_states
        return NewBlocks(
            np.tile(np.array(saved, np.int32), len(groups)),
            np.repeat(np.array(groups, np.int32), len(saved)),
            np.tile(np.array(slots, np.int32), len(groups)),
        )

    def reset(self) -> bool:
        """Drop cached blocks, also those of rows in use: the weights may have been replaced.

        No KV connector receives these blocks either.
        """
        self._outdated.update(range(len(self._rows.num_computed)))
        if self._snapshots is not None:
            self._snapshots.reset()
        self._transfers.spoil(self.prefix.hits.nonzero()[0].tolist())
        return self.prefix.reset()

    # ------------------------------------------------------------------ leaving
    def free(
        self, request: Request, row: int, *, num_known: int, drop: bool = False
    ) -> dict[str, Any] | None:
        blocks = self._tables.blocks(row).astype(np.intp)
        if drop:
            # Including blocks found in the cache: one of them may be the cause.
            self.pool.forget(blocks)
            self._transfers.spoil(self._rows_with_hits_in(blocks))
            if self._caching:
                self._tables.forget(self.prefix.chain_of(self._rows, row))
        else:
            offered = self.prefix.offer_row(self._rows, self._tables, row, num_known)
            self._transfers.cached(offered)
        if self._snapshots is not None:
            self._snapshots.leave(row, num_known)
            if drop:
                self._snapshots.forget(self.prefix.chain_of(self._rows, row))
        is_trusted = not (
            drop or row in self._outdated or self._may_lack_load(request, row, blocks)
        )
        is_kept = self._transfers.withdraw(request, row)
        parameters = None
        if request.is_finished:
            num_full = num_known // self._size if is_trusted else 0
            is_sent, parameters = self._transfers.finished(request, blocks[:num_full])
            is_kept |= is_sent
        if is_kept:
            self._transfers.keep(request.handle, blocks)
        elif len(blocks):
            self.pool.release(blocks)
        if not request.is_finished and self._is_renamed:
            self.prefix.forget(request.handle)
        self._tables.clear(row)
        self._lookups.leave(row, undo=not self._rows.announced[row])
        self.prefix.leave(row)
        return parameters

    def _may_lack_load(self, request: Request, row: int, blocks: BlockIds) -> bool:
        """Return True if an aborted request relied on a load that may still fail.

        A finished request already has the result of the step that relied on it.
        """
        if request.finish_reason is not FinishReason.ABORT:
            return False
        hits = blocks[: self.prefix.hits[row]]
        suspects = self._transfers.suspects()
        return self._transfers.has_open_load(request.handle) or bool(np.isin(hits, suspects).any())

    def forget(self, request: Request) -> None:
        self.prefix.forget(request.handle)
        self._transfers.forget(request.handle)

    # ------------------------------------------------------------------ the KV connector
    def transfers(self, done: Iterable[int], failed: Iterable[int]) -> Transferred:
        result = Transferred([], [])
        for handle in done:
            self._end_transfer(handle, result, worked=True)
        for handle in failed:
            self._end_transfer(handle, result, worked=False)
        _add_distinct(result.lost, self._transfers.overdue())
        return result

    def _end_transfer(self, handle: int, result: Transferred, *, worked: bool) -> None:
        transfers = self._transfers
        if handle in transfers.loading:
            load = transfers.loading.pop(handle)
            if load.is_spoilt:
                _add_distinct(result.lost, [load.row])
            else:
                num_computed = load.after if worked else load.before
                result.arrived.append((load.row, num_computed))
            if not worked:
                transfers.fail(handle)
                self._lookups.lose_load(load.row)
        elif handle in transfers.kept:
            blocks = transfers.give_back(handle)
            self.pool.release(blocks)
        elif not worked:
            _add_distinct(result.lost, self._disown(handle))

    def _disown(self, handle: int) -> list[int]:
        """Uncache blocks of a load that may have failed; returns rows that may have read them."""
        load = self._transfers.disown(handle)
        if load is None:
            return []
        loader, blocks = load
        self.pool.forget(blocks)
        lost = self._rows_with_hits_in(blocks)
        for waiting, pending in self._transfers.loading.items():
            if pending.row in lost:
                # A second load could not be distinguished from the current one.
                self._transfers.fail(waiting)
        if loader == LEFT:
            return lost
        self._transfers.fail(handle)
        readers = [row for row in lost if row != loader]
        return [loader, *readers]

    def _rows_with_hits_in(self, blocks: BlockIds) -> list[int]:
        """Rows that found one of these blocks in the prefix cache."""
        is_suspect = np.zeros(self.pool.num_blocks, np.bool_)
        is_suspect[blocks] = True
        found = []
        for row in self.prefix.hits.nonzero()[0].tolist():
            num_hits = self.prefix.hits[row]
            hits = self._tables.blocks(row)[:num_hits]
            if is_suspect[hits].any():
                found.append(row)
        return found

    def connector_metadata(self) -> Any:
        if self._snapshots is not None:
            self._snapshots.end_step()
        return self._transfers.end_step(self._block_ids)

    def _block_ids(self, row: int) -> list[int]:
        ids: list[int] = self._tables.blocks(row).tolist()
        return ids

    @property
    def waits(self) -> bool:
        return self._transfers.wait

    # ------------------------------------------------------------------ numbers
    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_total(self) -> int:
        return self.pool.num_blocks

    def take_counts(self) -> tuple[int, int]:
        return self._lookups.take()

    def take_external_counts(self) -> tuple[int, int]:
        return self._lookups.take_external()

    def numbers(self) -> dict[str, float]:
        """Numbers of the KV connector; for models with states also `state_snapshots`, the cached snapshots."""
        numbers = self._transfers.numbers()
        if self._snapshots is not None:
            numbers["state_snapshots"] = float(self._snapshots.num_cached)
        return numbers


def _seed_for(context: SchedulerContext) -> str | None:
    """Return the seed; None for digests private to the process, without a KV connector that stores them."""
    return None if context.kv_connector is None else CONNECTOR_SEED


def _add_distinct(rows: list[int], more: Iterable[int]) -> None:
    """Append rows that are not in the list yet."""
    for row in more:
        if row not in rows:
            rows.append(row)


def _tables_for(context: SchedulerContext, pool: BlockPool) -> BlockTables | WindowTables:
    """Return tables for several groups with blocks, or for one with a window; otherwise the simpler ones."""
    config = context.config
    kv_cache = context.kv_cache
    size = kv_cache.block_size
    max_blocks = -(-context.max_model_len // size)
    shape = (config.max_num_seqs, max_blocks, size, pool)
    kinds = [group.kind for group in kv_cache.groups]
    paged = [kind for kind in kinds if kind != "recurrent"]
    if "sliding" in paged or len(paged) > 1:
        return WindowTables(*shape, kv_cache.groups, config.step_token_budget)
    return BlockTables(*shape, kinds)
