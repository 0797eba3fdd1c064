"""KV connector: moves KV blocks in or out of the engine. One class, two instances: role SCHEDULER in the engine core,
role WORKER in each worker. Block-granular: loads happen before a step, saves after it.

Only `tenonry-kvcache` calls the scheduler half, so every scheduler based on it supports KV connectors.
"""

from __future__ import annotations

import enum
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Protocol

from tenonry.info import ModelInfo
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.request import Request


class KVConnectorRole(enum.Enum):
    """Half of a connector: scheduler or worker."""

    SCHEDULER = "scheduler"
    WORKER = "worker"


class BlockStore(Protocol):
    """A worker's KV tensors. `tensors`: name → tensor whose first dimension is the block id.

    `layout` identifies the format of a block's bytes: only with equal layouts may bytes of one run be used in another.
    All methods may be called on any thread.
    """

    tensors: Mapping[str, Any]
    layout: str

    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        """Return the bytes of each block over all layers, after all launched steps have ended."""

    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        """Overwrite blocks, before the next step is launched."""


@dataclass(slots=True)
class KVConnectorContext(PluginContext):
    """Inputs of a connector.

    `engine_id` names one engine in one run: a random part, made when the engine is built, and the engine's index
    ("1f0c…_dp0"). It is unique across instances and nodes, and changes with a restart. The scheduler half and the
    worker halves of an engine share it.
    """

    model: ModelInfo
    role: KVConnectorRole
    _: KW_ONLY
    engine_id: str
    kv_cache: KVCacheConfig | None = None
    rank: int = 0


class KVConnector(Plugin[KVConnectorContext], ABC):
    """Base of all connectors; every method has a default that does nothing.

    A step carries what `build_metadata` returned (text, bytes, numbers, lists and dicts of them) from the scheduler
    half to the worker half.
    """

    # scheduler half
    def name_blocks(self, digests: Callable[[Request, int], Sequence[bytes]]) -> None:
        """Set the function `self.digests(request, n)`, the names of the request's first `n` full blocks. Called first.

        A name covers all tokens up to the block's end, adapter, features and cache salt, and is the same in every
        process. It covers neither the model nor its configuration: a store that outlives the engine has to.
        """
        self.digests = digests

    def match(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Return (extra tokens loadable beyond `num_computed_tokens`, True if that takes more than one step).

        None requests another call in a later step. Extra tokens are whole blocks and never cover the last token.
        """
        return 0, False

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_external_tokens: int
    ) -> None:
        """Handle the allocation of `block_ids` (all of the request's, in order) for the tokens promised by `match`."""

    def build_metadata(self) -> Any:
        """Return the work of the worker half for the next step, or None."""
        return None

    def finished(
        self, request: Request, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Handle the end of a request. Returns (True to keep its blocks until the transfer ends, parameters for the
        client).

        `block_ids` are its full blocks of K/V, in order from the first token on. The last token has no K/V, nor have
        tokens that an aborted request did not compute; there are none of a request that failed, or was aborted before
        the result of the step that relied on its load.
        """
        return False, None

    def reset(self) -> bool:
        """Delete all stored blocks; True on success."""
        return True

    def numbers(self) -> dict[str, float]:
        """Additional numbers for `SchedulerStats.extra`."""
        return {}

    # worker half
    def bind(self, blocks: BlockStore) -> None:
        """Receive the worker's KV tensors."""

    def load(self, metadata: Any) -> None:
        """Load blocks, or start loading, before each step. `metadata` is None when there is nothing to do."""

    def save(self, metadata: Any) -> None:
        """Save blocks, or start saving, after each step. `metadata` as in `load`."""

    def poll(self) -> tuple[Iterable[int], Iterable[int]]:
        """Handles whose transfer ended since the last call: (done, failed). Called in each step.

        A request whose `match` returned "more than one step", or whose `finished` returned True, waits until this
        returns it; the wait for a load is bounded by the scheduler (300 s by default). Blocks of a transfer that never
        ends are never used again. With several ranks every rank returns the transfer once
        (`tenonry_kvcache.rank_transfers`).
        """
        return (), ()

    def shutdown(self) -> None:
        """Release everything. Called once per instance."""
