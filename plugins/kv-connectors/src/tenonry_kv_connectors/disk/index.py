"""Index of the blocks on the disk, and their names there. Engine process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import Any

from tenonry_kv_connectors.disk.folder import MODEL_BYTES, BlockFolder

DIGEST_BYTES = 20


class DiskIndex:
    """Queries the folder itself, which other engines may fill and empty. `identity`: of model and configuration.

    After a reset the engine goes on under names that only it knows: its weights may have been replaced, so what it
    computes must not be found by an engine that starts with the old ones.
    """

    def __init__(self, folder: BlockFolder, identity: bytes) -> None:
        self._folder = folder
        self._model = identity[:MODEL_BYTES]
        self._key = hashlib.blake2b(identity, key=folder.epoch(self._model)).digest()

    def name(self, digest: bytes) -> bytes:
        hashed = hashlib.blake2b(digest, key=self._key, digest_size=DIGEST_BYTES)
        return self._model + hashed.digest()

    def has(self, digest: bytes) -> bool:
        return self._folder.is_stored(self.name(digest))

    def use(self, digests: Sequence[bytes]) -> None:
        """The stores know best: they read the files."""

    def add(self, digests: Sequence[bytes]) -> tuple[Sequence[bytes], Any]:
        return digests, None

    def orders(self) -> Any:
        return None

    def reset(self) -> bool:
        self._key = os.urandom(len(self._key))
        self._folder.forget(self._model)
        return True

    def numbers(self) -> dict[str, float]:
        return {}
