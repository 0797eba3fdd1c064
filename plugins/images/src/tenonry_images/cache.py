"""Images that were made ready, by the digest of their file. Front end; any thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenonry_images.base import ProcessedImage


class ProcessedImages:
    """Holds at most `max_bytes`; those that were used longest ago go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._images: OrderedDict[bytes, ProcessedImage] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, key: bytes) -> ProcessedImage | None:
        """Image made from the file of this key, or None."""
        with self._lock:
            found = self._images.get(key)
            if found is not None:
                self._images.move_to_end(key)
            return found

    def put(self, key: bytes, image: ProcessedImage) -> None:
        """Keep it, if there is room for it at all."""
        with self._lock:
            if image.num_bytes > self._max_bytes or key in self._images:
                return
            self._images[key] = image
            self._num_bytes += image.num_bytes
            while self._num_bytes > self._max_bytes:
                _, oldest = self._images.popitem(last=False)
                self._num_bytes -= oldest.num_bytes

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._images.clear()
            self._num_bytes = 0
