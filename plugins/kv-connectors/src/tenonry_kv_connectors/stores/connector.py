"""Both halves of a connector that keeps blocks in a store. Engine and worker processes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, cast

from tenonry.interfaces.kv_connector import (
    BlockStore,
    KVConnector,
    KVConnectorContext,
    KVConnectorRole,
)
from tenonry.kv_cache import KVCacheConfig
from tenonry.request import Request
from tenonry_kv_connectors.stores.ledger import Index, Ledger
from tenonry_kv_connectors.stores.mover import Mover, Store


def block_bytes(context: KVConnectorContext) -> int:
    """K and V of one block of one rank."""
    cache = cast("KVCacheConfig", context.kv_cache)
    return sum(group.bytes_per_token for group in cache.groups) * cache.block_size


class StoreConnector(KVConnector):
    """Saves all full blocks of requests that ended, and loads those of prompts that begin alike.

    A subclass makes the index in the engine and a store in each worker. Transfers take more than one step: the thread
    of a rank copies while steps run.
    """

    label: ClassVar[str]  # for the log

    def __init__(self, context: KVConnectorContext) -> None:
        super().__init__(context)
        self._ledger: Ledger | None = None
        self._mover: Mover | None = None
        if context.role is KVConnectorRole.SCHEDULER:
            cache = cast("KVCacheConfig", context.kv_cache)
            self._ledger = Ledger(
                self.make_index(),
                cache.block_size,
                block_bytes(context) * context.config.world_size,
            )

    @abstractmethod
    def make_index(self) -> Index:
        """In the engine, once."""

    @abstractmethod
    def make_store(self, blocks: BlockStore) -> Store:
        """In each worker, once the KV tensors exist."""

    # ------------------------------------------------------------------ scheduler half
    @property
    def ledger(self) -> Ledger:
        """Ledger of the scheduler half."""
        if self._ledger is None:
            raise RuntimeError(f"KV connector '{self.label}': this is the worker half")
        return self._ledger

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        digests = self.digests(request, self.ledger.usable(request))
        return self.ledger.match(request, num_computed_tokens, digests)

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        digests = self.digests(request, self.ledger.usable(request))
        self.ledger.allocated(request, block_ids, num_external_tokens, digests)

    def build_metadata(self) -> Any:
        return self.ledger.take()

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        digests = self.digests(request, len(block_ids))
        return self.ledger.finished(request, block_ids, digests), None

    def reset(self) -> bool:
        return self.ledger.reset()

    def numbers(self) -> dict[str, float]:
        return self.ledger.numbers()

    # ------------------------------------------------------------------ worker half
    def bind(self, blocks: BlockStore) -> None:
        self._mover = Mover(blocks, self.make_store(blocks), self.label)

    @property
    def mover(self) -> Mover:
        """Block mover of the worker half, once the KV tensors exist."""
        if self._mover is None:
            raise RuntimeError(f"KV connector '{self.label}': bind() comes first")
        return self._mover

    def load(self, metadata: Any) -> None:
        if metadata is None:
            return
        loads, _, saves = metadata
        saved = _names(saves)
        for job in loads:
            if saved.isdisjoint(_names([job])):
                self.mover.load(*job)

    def save(self, metadata: Any) -> None:
        """Save, and load blocks saved in this very step: a request needed blocks of one that had just ended."""
        if metadata is None:
            return
        loads, orders, saves = metadata
        if orders is not None:
            self.mover.follow(orders)
        for handle, pairs, before in saves:
            if before is not None:
                self.mover.follow(before)
            self.mover.save(handle, pairs)
        saved = _names(saves)
        for job in loads:
            if not saved.isdisjoint(_names([job])):
                self.mover.load(*job)

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        return self.mover.ended()

    # ------------------------------------------------------------------ both
    def shutdown(self) -> None:
        if self._mover is not None:
            self._mover.close()
            self._mover = None


def _names(jobs: Iterable[Sequence[Any]]) -> set[bytes]:
    """The blocks of loads or of saves."""
    return {name for _, pairs, *_ in jobs for name, _ in pairs}
