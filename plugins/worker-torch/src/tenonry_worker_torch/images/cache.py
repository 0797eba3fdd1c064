"""Images that were encoded, by digest: the same image in another prompt is not encoded again. Worker process."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

CACHED_TOKENS = 8192  # 64 MiB with a hidden size of 4096 in 16 bits


class EncodedImages:
    """Holds at most `max_tokens` embeddings, evicting the least recently used ones first."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._num_tokens = 0
        self._images: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, digest: bytes) -> torch.Tensor | None:
        """Return the embeddings of an image, [n, H] or [n, layers, H], or None."""
        found = self._images.get(digest)
        if found is not None:
            self._images.move_to_end(digest)
        return found

    def put(self, digest: bytes, embeddings: torch.Tensor) -> None:
        """Store the embeddings of an image, if they fit at all."""
        count = _size(embeddings)
        if count > self._max_tokens or digest in self._images:
            return
        self._images[digest] = embeddings
        self._num_tokens += count
        while self._num_tokens > self._max_tokens:
            _, oldest = self._images.popitem(last=False)
            self._num_tokens -= _size(oldest)

    def clear(self) -> None:
        """Forget all of them."""
        self._images.clear()
        self._num_tokens = 0


def _size(embeddings: torch.Tensor) -> int:
    """Number of embeddings, over tokens and layers."""
    return embeddings.numel() // embeddings.shape[-1]
