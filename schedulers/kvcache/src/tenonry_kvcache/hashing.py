"""Chained block hashes: a digest identifies a block's tokens and everything before them. Engine process.

digest(0) = H(seed, tokens of block 0), digest(i) = H(digest(i−1), tokens of block i), with H = SHA-256 and a seed of
all other inputs of K/V, and of the tenant. A block in which images begin has H(that digest, image digests) instead, so
that digests cover exactly the images that begin in or before the block. Two requests have equal digests only if they
may use each other's blocks.
"""

from __future__ import annotations

import os
from hashlib import sha256
from typing import Any

import msgspec
import numpy as np

from tenonry.kv_cache import LengthClasses
from tenonry.request import Request

TOKEN_BYTES = np.dtype(np.int32).itemsize
ROOT_BYTES = 32
CONNECTOR_SEED = "tenonry KV blocks 1"  # increment whenever digests of the same tokens change
Chain = list[bytes]  # the seed, then one digest per block


class ImageChain(list[bytes]):
    """A chain of a prompt with images. `images`: digests of the images that begin in a block, by its number."""

    def __init__(self, seed: bytes, images: dict[int, bytes]) -> None:
        super().__init__((seed,))
        self._images = images

    def append(self, digest: bytes) -> None:
        """Append the next block's token digest, combined with the digests of the images in the block."""
        images = self._images.get(len(self) - 1)
        super().append(sha256(digest + images).digest() if images else digest)


class BlockHasher:
    """Makes seeds and digests. Without a `seed` it draws one; digests are then private to the process."""

    def __init__(
        self, block_size: int, seed: str | None = None, lengths: LengthClasses | None = None
    ) -> None:
        self._lengths = lengths
        self._block_size = block_size
        self.block_bytes = block_size * TOKEN_BYTES
        if seed is None:
            self._root = os.urandom(ROOT_BYTES)
        else:
            self._root = sha256(seed.encode()).digest()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain, order="deterministic")

    def seed(self, request: Request) -> bytes:
        """Return the digest before the first block: cache salt (tenant), content of the adapter, features, and the
        length class of the prompt where K depends on it.
        """
        source = request.source
        salt = source.cache_salt
        adapter = source.adapter and source.adapter.digest
        features = source.features
        length = self._length_class(request)
        if salt is None and adapter is None and not features and not length:
            return self._root
        parts = self._encoder.encode((salt, adapter, features))
        if length:
            parts += length.to_bytes(8, "little")
        return sha256(self._root + parts).digest()

    def _length_class(self, request: Request) -> int:
        """Return 0 for prompts of at most the original length; see `LengthClasses`."""
        rule = self._lengths
        if rule is None:
            return 0
        length = request.num_tokens if rule.restarts else request.num_prompt_tokens
        if length <= rule.original:
            return 0
        return length if rule.grows else 1

    def chain(self, request: Request) -> Chain:
        """Return a chain that begins with the request's seed."""
        media = request.source.media
        seed = self.seed(request)
        if media is None:
            return [seed]
        images: dict[int, bytes] = {}
        mark = "!" if len(media.whole) else ":"
        for (begin, count), digest in zip(media.spans.tolist(), media.digests, strict=True):
            number = begin // self._block_size
            place = f"{begin % self._block_size}+{count}{mark}".encode()
            images[number] = images.get(number, b"") + place + digest.tobytes()
        return ImageChain(seed, images)

    def extend_each(self, chains: list[Chain], data: bytes) -> list[bytes]:
        """Extend each chain by one block, with the tokens of all blocks in `data`; returns the new digests."""
        size = self.block_bytes
        start = 0
        digests = []
        for chain in chains:
            stop = start + size
            digest = sha256(chain[-1] + data[start:stop]).digest()
            chain.append(digest)
            digests.append(chain[-1])
            start = stop
        return digests

    def extend(self, chain: Chain, data: memoryview | bytes, first: int, stop: int) -> None:
        """Extend `chain` up to block `stop`, excluded; `data` holds tokens from block `first` on."""
        size = self.block_bytes
        for number in range(len(chain) - 1, stop):
            start = (number - first) * size
            tokens = data[start : start + size]
            chain.append(sha256(chain[number] + tokens).digest())


def _plain(array: np.ndarray) -> Any:
    """Return the content of a feature for its digest; `check_request` accepts numeric arrays only."""
    return (array.dtype.str, array.shape, array.tobytes())
