"""Block pool, block hashes and prefix cache, as a library for schedulers; runs in the engine process."""

from __future__ import annotations

from tenonry_kvcache.hashing import CONNECTOR_SEED, BlockHasher
from tenonry_kvcache.manager import SNAPSHOT_INTERVAL, TRANSFER_TIMEOUT_S, KVCacheManager
from tenonry_kvcache.pool import BlockPool

__all__ = [
    "CONNECTOR_SEED",
    "SNAPSHOT_INTERVAL",
    "TRANSFER_TIMEOUT_S",
    "BlockHasher",
    "BlockPool",
    "KVCacheManager",
]
