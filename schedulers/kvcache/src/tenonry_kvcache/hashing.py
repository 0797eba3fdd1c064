"""Chained block hashes: a digest stands for a block's tokens and for everything before them. Engine process.

digest(0) = H(seed, tokens of block 0), digest(i) = H(digest(i−1), tokens of block i), with H = SHA-256 and the seed
made of everything but tokens that K/V depend on, and of who may share it. Two requests have equal digests only if they
may use each other's blocks.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from tenonry.request import Request


class BlockHasher:
    """Makes seeds and digests. Without a `seed` it draws one, so that digests mean nothing outside the process."""

    def __init__(self, block_size: int, seed: str | None = None) -> None:
        self.block_bytes = block_size * np.dtype(np.int32).itemsize
        self._root = os.urandom(32) if seed is None else sha256(seed.encode()).digest()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")

    def seed(self, request: Request) -> bytes:
        """The digest before the first block: cache salt (a tenant's own), content of the adapter, and features."""
        source = request.source
        if source.cache_salt is None and source.adapter is None and not source.features:
            return self._root
        adapter = None if source.adapter is None else source.adapter.digest
        parts = (source.cache_salt, adapter, source.features)
        return sha256(self._root + self._encoder.encode(parts)).digest()

    def extend_each(self, chains: list[list[bytes]], data: bytes) -> list[bytes]:
        """Bring each chain on by one block, whose tokens stand in `data` in turn; returns the new digests."""
        size, stop = self.block_bytes, 0
        digests = []
        for chain in chains:
            start, stop = stop, stop + size
            digest = sha256(chain[-1] + data[start:stop]).digest()
            chain.append(digest)
            digests.append(digest)
        return digests

    def extend(self, chain: list[bytes], data: memoryview | bytes, first: int, stop: int) -> None:
        """Bring `chain` (the seed, then one digest per block) up to block `stop`; `data` starts with block `first`."""
        size = self.block_bytes
        for number in range(len(chain) - 1, stop):
            start = (number - first) * size
            chain.append(sha256(chain[number] + data[start : start + size]).digest())


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"a feature of type {type(value).__name__} cannot be hashed")
