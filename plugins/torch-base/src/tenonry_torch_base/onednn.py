"""Switch of oneDNN, which compiles code for each shape of a product in 16 bits and keeps it. Worker process."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCK = threading.Lock()


@contextmanager
def without_onednn(*, applies: bool) -> Iterator[None]:
    """Disables oneDNN for all threads if `applies`; one thread at a time is in such a context."""
    if not applies:
        yield
        return
    with _LOCK:
        before = torch.backends.mkldnn.enabled
        torch.backends.mkldnn.enabled = False
        try:
            yield
        finally:
            torch.backends.mkldnn.enabled = before
