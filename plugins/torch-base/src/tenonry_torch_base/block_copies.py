"""Copies of KV blocks between a device and main memory, on a separate stream and through pinned memory. Worker process.

One kernel per tensor gathers a piece of the blocks on the device, and one copy moves it; the host unpacks it during the
next copy. Concurrently launched steps do not wait for a read; they wait for a write until its last copy.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.buffers import put_in_order

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PIECE_BYTES = 16 << 20
PIECES = 2  # in pinned memory, filled and emptied in rotation


class InOrder:
    """A device that does one thing after another: the CPU."""

    def copying(self) -> AbstractContextManager[object]:
        """Return a context in which launched work follows earlier steps."""
        return nullcontext()

    def launched(self, piece: int) -> None:
        """The last copy into, or out of, this piece of pinned memory was launched."""

    def wait(self, piece: int) -> None:
        """Wait on the host for that copy."""

    def before_steps(self) -> None:
        """Steps launched from now on follow all copies."""


class SideStream(InOrder):
    """Copies on a stream separate from the steps'."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._moved = [torch.cuda.Event() for _ in range(PIECES)]

    def copying(self) -> AbstractContextManager[object]:
        self._select()
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        return torch.cuda.stream(self._copies)

    def launched(self, piece: int) -> None:
        self._moved[piece].record(self._copies)

    def wait(self, piece: int) -> None:
        self._select()
        self._moved[piece].synchronize()

    def _select(self) -> None:
        """Threads begin on the first device: returning to a stream there would open a context on it."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)

    def before_steps(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._copies)


class BlockCopies:
    """Copies blocks for any thread, one call at a time."""

    def __init__(self, device: torch.device, order: InOrder | None = None) -> None:
        is_cuda = device.type == "cuda"
        self._device = device
        self._pins = is_cuda
        self._order = order or (SideStream(device) if is_cuda else InOrder())
        self._lock = threading.Lock()
        self._pinned = torch.empty(PIECES, 0, dtype=torch.uint8)

    def read(self, tensors: Sequence[torch.Tensor], block_ids: Sequence[int]) -> list[bytes]:
        """The bytes of each block over all tensors, after the steps launched before."""
        found: list[bytes] = []
        moving: tuple[int, torch.Tensor] | None = None
        with self._lock:
            for piece, part in self._pieces(tensors, block_ids):
                lines = self._begin_read(tensors, part, piece)
                if moving is not None:
                    found += self._taken(*moving)
                moving = piece, lines
            if moving is not None:
                found += self._taken(*moving)
        return found

    def write(
        self, tensors: Sequence[torch.Tensor], block_ids: Sequence[int], data: Sequence[bytes]
    ) -> None:
        """Overwrite blocks, before the steps launched afterwards. Each of `data` has the size of a block."""
        sizes = [block_bytes(tensor) for tensor in tensors]
        done = 0
        with self._lock:
            for piece, part in self._pieces(tensors, block_ids):
                self._order.wait(piece)
                lines = self._pinned[piece][: len(part) * sum(sizes)].view(len(part), sum(sizes))
                host = lines.numpy()
                for line, content in zip(host, data[done : done + len(part)], strict=True):
                    line[:] = np.frombuffer(content, np.uint8)
                done += len(part)
                with self._order.copying():
                    moved = lines.to(self._device, non_blocking=True).split(sizes, 1)
                    places = self._places(part)
                    for tensor, columns in zip(tensors, moved, strict=True):
                        shape = (len(part), *tensor.shape[1:])
                        aligned = columns.reshape(-1).clone()
                        contents = aligned.view(tensor.dtype).view(shape)
                        tensor.index_copy_(0, places, contents)
                self._order.launched(piece)
            self._order.before_steps()

    def _begin_read(
        self, tensors: Sequence[torch.Tensor], block_ids: Sequence[int], piece: int
    ) -> torch.Tensor:
        """Start to copy some blocks; returns the pinned memory that will hold them."""
        count = len(block_ids)
        with self._order.copying():
            places = self._places(block_ids)
            columns = [
                tensor.index_select(0, places).view(count, -1).view(torch.uint8)
                for tensor in tensors
                if tensor[0].numel()
            ]
            joined = torch.cat(columns, 1)
            lines = self._pinned[piece][: joined.numel()].view(joined.shape)
            lines.copy_(joined, non_blocking=True)
        self._order.launched(piece)
        return lines

    def _taken(self, piece: int, lines: torch.Tensor) -> list[bytes]:
        self._order.wait(piece)
        return [line.tobytes() for line in lines.numpy()]

    def _places(self, block_ids: Sequence[int]) -> torch.Tensor:
        return put_in_order(np.array(block_ids, np.int64), self._device)

    def _pieces(
        self, tensors: Sequence[torch.Tensor], block_ids: Sequence[int]
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield numbers of pieces of pinned memory, with their blocks."""
        size = sum(map(block_bytes, tensors))
        count = max(1, PIECE_BYTES // max(size, 1))
        needed = size * min(count, len(block_ids))
        if self._pinned.shape[1] < needed:
            for piece in range(PIECES):
                self._order.wait(piece)
            with (
                self._order.copying()
            ):  # selects the device, as pinning would open a context on the first one
                self._pinned = torch.empty(PIECES, needed, dtype=torch.uint8, pin_memory=self._pins)
        for number, begin in enumerate(range(0, len(block_ids), count)):
            yield number % PIECES, block_ids[begin : begin + count]


def block_bytes(tensor: torch.Tensor) -> int:
    """Bytes of a block in a tensor [blocks, …]."""
    return tensor[0].numel() * tensor.itemsize
