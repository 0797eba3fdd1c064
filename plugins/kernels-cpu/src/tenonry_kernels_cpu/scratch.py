"""Memory that kernels write to while they run, kept from call to call. Worker process."""

from __future__ import annotations

import torch

LINE_BYTES = 64


class Scratch:
    """Scratch memory as large as any call has needed so far."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = torch.empty(0, dtype=torch.uint8)

    def address(self, room: int) -> int:
        """Address of `room` bytes, aligned to a cache line."""
        if room + LINE_BYTES > len(self._held):
            self._held = torch.empty(room + LINE_BYTES, dtype=torch.uint8)
        begin = self._held.data_ptr()
        return begin + -begin % LINE_BYTES
