"""Transfers of the scheduler half: offers made and followed, until the next step carries them to the ranks. Engine
process.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from tenonry.interfaces.kv_connector import KVConnectorContext
from tenonry.kv_cache import KVCacheConfig
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.transport.keys import CurveKeys
from tenonry_kv_connectors.peer.offer import READERS, WANTS_OFFER, Offer, Sealer
from tenonry_kv_connectors.peer.registry import Registry
from tenonry_kv_connectors.stores.connector import block_bytes
from tenonry_kv_connectors.stores.identity import model_identity

logger = logging.getLogger("tenonry.kv_connector")
Digests = Callable[[Request, int], Sequence[bytes]]
TOKEN_BYTES = 16
REGISTER_S = 2.0  # that the first offer waits for the ranks' addresses
MAX_READERS = 1024


class TransferQueue:
    """Transfers that the next step starts. `digests` of the calls are the connector's."""

    def __init__(self, context: KVConnectorContext, host: str, keys: CurveKeys) -> None:
        cache = cast("KVCacheConfig", context.kv_cache)
        self._engine_id = context.engine_id
        self._size = cache.block_size
        self._num_ranks = context.config.world_size
        self._block_bytes = block_bytes(context) * self._num_ranks
        self._identity = model_identity(context).hex()
        self._sealer = Sealer(keys)
        self._registry = Registry(host, keys, self._num_ranks)
        self._told_ranks = False
        self._number = 0
        self._since = 0.0  # offers made before were reset
        self._clears = False
        self._first: dict[int, tuple[int, Offer]] = {}  # handle → first block; for one step
        self._holds: list[list[Any]] = []
        self._pulls: list[list[Any]] = []
        self._ignored: set[str] = set()  # reasons that stand in the log
        self._num_held = 0
        self._num_pulled = 0

    # ------------------------------------------------------------------ where the prompt is decoded
    def match(
        self, request: Request, num_computed_tokens: int, digests: Digests
    ) -> tuple[int, bool]:
        """As `KVConnector.match`."""
        parameters = request.source.kv_transfer_params or {}
        if WANTS_OFFER in parameters:
            return 0, False
        offer = self._sealer.opened(parameters)
        first = num_computed_tokens // self._size
        usable = (request.num_tokens - 1) // self._size
        reason = self._objection(offer)
        if offer is None or reason:
            self._ignore(request, reason)
            return 0, False
        last = min(usable, offer.blocks)
        if last <= first:
            return 0, False
        names = digests(request, min(request.num_tokens // self._size, offer.blocks))
        if len(names) == offer.blocks and names[-1].hex() != offer.last:
            self._ignore(request, "they are of another prompt, adapter or cache_salt")
            return 0, False
        self._first[request.handle] = (first, offer)
        return (last - first) * self._size, True

    def _objection(self, offer: Offer | None) -> str:
        """Reason for ignoring an offer; empty if it is followed."""
        if offer is None:
            return "no engine of this deployment made them"
        if len(offer.peer) != self._num_ranks:
            return f"they name {len(offer.peer)} ranks, and this engine has {self._num_ranks}: sizes must be equal"
        if offer.identity != self._identity:
            return "the engine that made them has another model or configuration"
        if offer.made < self._since:
            return "they are older than the last reset"
        return ""

    def _ignore(self, request: Request, reason: str) -> None:
        """Once per reason: the request computes its prompt."""
        if reason not in self._ignored:
            self._ignored.add(reason)
            logger.warning(
                "KV connector 'peer': ignored kv_transfer_params of request %s: %s; its "
                "prompt is computed",
                request.request_id,
                reason,
            )

    def allocated(
        self, request: Request, block_ids: Sequence[int], num_tokens: int, digests: Digests
    ) -> None:
        """As `KVConnector.allocated`."""
        first, offer = self._first.pop(request.handle)
        last = first + num_tokens // self._size
        names = digests(request, last)[first:]
        pairs = _pairs(names, block_ids[first:last])
        self._pulls.append([request.handle, list(offer.peer), offer.token, offer.number, pairs])
        self._num_pulled += len(pairs)

    # ------------------------------------------------------------------ where it is computed
    def finished(
        self, request: Request, block_ids: Sequence[int], digests: Digests
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `KVConnector.finished`: an offer, for a request that needs one."""
        parameters = request.source.kv_transfer_params or {}
        blocks = min(len(block_ids), request.num_prompt_tokens // self._size)
        has_failed = request.finish_reason in (FinishReason.ABORT, FinishReason.ERROR)
        if not parameters.get(WANTS_OFFER) or has_failed or not blocks:
            return False, None
        peer = self._registry.ranks(REGISTER_S)
        if peer is None:
            logger.warning(
                "KV connector 'peer': a rank did not report its address within %g s", REGISTER_S
            )
            return False, None
        names = digests(request, blocks)
        self._number += 1
        offer = Offer(
            engine_id=self._engine_id,
            peer=peer,
            token=secrets.token_hex(TOKEN_BYTES),
            number=self._number,
            blocks=blocks,
            identity=self._identity,
            last=names[-1].hex(),
            made=time.time(),
        )
        readers = _count(parameters.get(READERS))
        pairs = _pairs(names, block_ids[:blocks])
        self._holds.append([request.handle, offer.token, offer.number, readers, pairs])
        self._num_held += blocks
        return True, self._sealer.sealed(offer)

    # ------------------------------------------------------------------ both
    def take(self) -> Any:
        """Metadata of the next step, or None."""
        self._first.clear()
        registry = "" if self._registry.is_complete else self._registry.address
        if registry and self._told_ranks:
            registry = ""
        if not (registry or self._clears or self._holds or self._pulls):
            return None
        self._told_ranks = True
        metadata = [registry, self._clears, self._holds, self._pulls]
        self._clears = False
        self._holds = []
        self._pulls = []
        return metadata

    def reset(self) -> bool:
        """Send held blocks to no engine any more, and ignore offers made before."""
        self._since = time.time()
        self._clears = True
        for hold in self._holds:  # their handles are named all the same
            hold[-1] = []
        return True

    def numbers(self) -> dict[str, float]:
        """Bytes over all ranks since the start."""
        return {
            "kv_connector_load_bytes": float(self._num_pulled * self._block_bytes),
            "kv_connector_save_bytes": float(self._num_held * self._block_bytes),
        }

    def close(self) -> None:
        self._registry.close()


def _pairs(digests: Sequence[bytes], block_ids: Sequence[int]) -> list[list[Any]]:
    return [[digest, int(block)] for digest, block in zip(digests, block_ids, strict=True)]


def _count(value: Any) -> int:
    """Number of requests that will fetch a prompt: 1 to `MAX_READERS`."""
    return min(max(value, 1), MAX_READERS) if isinstance(value, int) else 1
