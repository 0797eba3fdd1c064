"""A KV connector that keeps blocks in this process. Scheduler half in the engine, worker half in the worker.

Both halves of an engine, and those of later engines in the same process, share a store by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from tenonry.interfaces.kv_connector import BlockStore, KVConnector, KVConnectorContext
from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request

Job = list[
    Any
]  # [handle, [[block hash as hex, block id], …]]: plain values, as metadata crosses processes


class MemoryOptions(PluginOptions):
    """`store`: name of a shared store. `asynchronous`: a load takes `delay_polls` steps and the request waits for it.

    `num_undecided`: number of requests whose first `match` returns None, for a repeated call. `fail_loads`: number of
    loads that fail, after overwriting the blocks with garbage, as a broken transfer may. `holds_saves`: saves keep
    their blocks until `hurry`.
    """

    store: str = "default"
    asynchronous: bool = False
    delay_polls: int = 2
    fail_loads: int = 0
    num_undecided: int = 0
    holds_saves: bool = False


class MemoryStore:
    """Block hash → bytes, and counters: blocks saved and loaded, loads that failed."""

    def __init__(self) -> None:
        self.blocks: dict[str, bytes] = {}
        self.num_saved = self.num_loaded = self.num_failed = 0


STORES: dict[str, MemoryStore] = {}


def memory_store(name: str = "default") -> MemoryStore:
    """Return the store of this name, created on first use."""
    return STORES.setdefault(name, MemoryStore())


class MemoryConnector(KVConnector):
    """Saves a finished request's full prompt blocks, and loads them for any later prompt with the same prefix."""

    Options = MemoryOptions

    def __init__(self, context: KVConnectorContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, MemoryOptions) else MemoryOptions()
        self.store = memory_store(self.options.store)
        self._loads: list[Job] = []
        self._saves: list[Job] = []
        self._matched: dict[int, int] = {}
        self._transfers: list[tuple[int, Job, bool]] = []
        self._done: list[int] = []
        self._failed: list[int] = []
        self._failures_left = self.options.fail_loads
        self._undecided: set[int] = set()  # handles whose `match` returned None
        self._delay_polls = self.options.delay_polls
        self._holds_saves = self.options.holds_saves
        self._held: list[int] = []
        self.num_promised = 0  # loads

    # ------------------------------------------------------------------ scheduler half
    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        if len(self._undecided | {request.handle}) <= self.options.num_undecided:
            if request.handle not in self._undecided:
                self._undecided.add(request.handle)
                return None, False
        hashes = self._hashes(request)
        first = num_computed_tokens // self._block_size
        usable = (request.num_tokens - 1) // self._block_size
        last = first
        while last < usable and hashes[last] in self.store.blocks:
            last += 1
        self._matched[request.handle] = first
        extra = (last - first) * self._block_size
        return extra, bool(extra) and self.options.asynchronous

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        first = self._matched.pop(request.handle, 0)
        count = num_external_tokens // self._block_size
        if not count:
            return
        which = slice(first, first + count)
        hashes = self._hashes(request)[which]
        blocks = list(block_ids)[which]
        self._loads.append([request.handle, _pairs(hashes, blocks)])
        self.num_promised += 1

    def build_metadata(self) -> Any:
        if not self._loads and not self._saves:
            return None
        metadata = {"load": self._loads, "save": self._saves}
        self._loads = []
        self._saves = []
        return metadata

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        num_full = request.num_prompt_tokens // self._block_size
        hashes = self._hashes(request)[:num_full]
        pairs = _pairs(hashes, block_ids)
        missing = [pair for pair in pairs if pair[0] not in self.store.blocks]
        if not missing:
            return False, None
        self._saves.append([request.handle, missing])
        return True, None if self.options.holds_saves else {"saved_blocks": len(missing)}

    def numbers(self) -> dict[str, float]:
        return {"promised_loads": float(self.num_promised)}

    def reset(self) -> bool:
        self.store.blocks.clear()
        return True

    # ------------------------------------------------------------------ worker half
    def bind(self, blocks: BlockStore) -> None:
        self._blocks = blocks

    def load(self, metadata: Any) -> None:
        for job in _jobs(metadata, "load"):
            fails = self._fails(job)
            if self.options.asynchronous:
                transfer = (self._delay_polls, job, fails)
                self._transfers.append(transfer)
            else:
                self._load_now(job, fails=fails)

    def save(self, metadata: Any) -> None:
        for handle, pairs in _jobs(metadata, "save"):
            block_ids = [block for _, block in pairs]
            contents = self._blocks.read(block_ids)
            for (name, _), data in zip(pairs, contents, strict=True):
                self.store.blocks[name] = data
            self.store.num_saved += len(pairs)
            (self._held if self._holds_saves else self._done).append(handle)

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        waiting = self._transfers
        self._transfers = []
        for polls, job, fails in waiting:
            if polls > 0:
                self._transfers.append((polls - 1, job, fails))
                continue
            self._load_now(job, fails=fails)
            if not fails:
                self._done.append(job[0])
        done = self._done
        failed = self._failed
        self._done = []
        self._failed = []
        return done, failed

    def hurry(self) -> None:
        """Complete all transfers with the next poll, current and later ones."""
        self._holds_saves = False
        self._done += self._held
        self._held = []
        self._delay_polls = 0
        self._transfers = [(0, job, fails) for _, job, fails in self._transfers]

    # ------------------------------------------------------------------ details
    @property
    def _block_size(self) -> int:
        assert self.context.kv_cache is not None
        return self.context.kv_cache.block_size

    def _hashes(self, request: Request) -> list[str]:
        """Chained hashes of the full blocks of the request's tokens when it last entered the queue."""
        source = request.source
        size = self._block_size
        owner = repr((source.cache_salt, source.adapter))
        name = hashlib.sha256(owner.encode()).digest()
        hashes = []
        for end in range(size, request.num_tokens + 1, size):
            part = request.token_ids[end - size : end]
            name = hashlib.sha256(name + part.tobytes()).digest()
            hashes.append(name.hex())
        return hashes

    def _fails(self, job: Job) -> bool:
        """True if this load must fail: on request, or because its blocks are no longer stored."""
        on_request = self._failures_left > 0
        if on_request:
            self._failures_left -= 1
        _, pairs = job
        names = {name for name, _ in pairs}
        return on_request or not names <= self.store.blocks.keys()

    def _load_now(self, job: Job, *, fails: bool) -> None:
        handle, pairs = job
        ids = [block for _, block in pairs]
        if fails:
            contents = self._blocks.read(ids)
            zeros = [bytes(len(data)) for data in contents]
            self._blocks.write(ids, zeros)
            self.store.num_failed += 1
            self._failed.append(handle)
            return
        stored = [self.store.blocks[name] for name, _ in pairs]
        self._blocks.write(ids, stored)
        self.store.num_loaded += len(pairs)


def _pairs(hashes: Iterable[str], block_ids: Iterable[int]) -> list[list[Any]]:
    """[block hash, block id] of all blocks with both."""
    pairs = zip(hashes, block_ids, strict=False)
    return [[name, int(block)] for name, block in pairs]


def _jobs(metadata: Any, kind: str) -> list[Job]:
    """Jobs of one kind, "load" or "save"; none without metadata."""
    if metadata is None:
        return []
    jobs: list[Job] = metadata[kind]
    return jobs
