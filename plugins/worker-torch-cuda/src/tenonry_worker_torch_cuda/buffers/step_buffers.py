"""The buffers `cuda`: a step's inputs are copied to the device from pinned memory, overlapping with the running step.
Worker process.

Each step in flight has one block of bytes, pinned on the CPU and with a counterpart on the device. `put` allocates the
next bytes for any label, so memory is bounded by the largest step, not by the number of labels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_worker_torch_cuda.buffers.cpu_gpu_buffer import CpuGpuBuffer, copy_slice
from tenonry_worker_torch_cuda.buffers.stream_order import InOrder, StreamOrder

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 256  # bytes; as the CUDA allocator aligns, so that kernels may load wide words
FIRST_BYTES = 1 << 20


class CudaBuffers:
    """Implements `tenonry.buffers`. On a device of type "cpu" it does the same with plain memory and plain copies.

    The array passed to `put` may change as soon as the call returns. `begin_step` waits if the inputs of the step
    `steps_in_flight` earlier are still being copied; no other call waits for the device.
    """

    name: ClassVar[str] = "cuda"
    interface_version: ClassVar[int] = 1

    def __init__(self, device: torch.device, steps_in_flight: int) -> None:
        self.device = device
        self.steps_in_flight = steps_in_flight
        self._order = InOrder()
        if device.type == "cuda":
            self._order = StreamOrder(device, steps_in_flight)
        self._lanes = [self._allocate(FIRST_BYTES) for _ in range(steps_in_flight)]
        self._lane = 0
        self._used = 0
        self._dtypes: dict[np.dtype[np.generic], torch.dtype] = {}

    def begin_step(self) -> None:
        """A new step starts: memory handed out `steps_in_flight` steps ago is used again."""
        self._order.end_step(self._lane)
        self._lane = (self._lane + 1) % self.steps_in_flight
        self._used = 0
        self._order.begin_step(self._lane)

    def put(self, label: str, array: NDArray[np.generic]) -> torch.Tensor:
        """`array` as a tensor on the device, valid until its step has run."""
        begin = self._used
        end = self._used + array.nbytes
        lane = self._lanes[self._lane]
        if end > len(lane.cpu):
            lane = self._grow(array.nbytes)
            begin = 0
            end = array.nbytes
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        pinned = lane.np[begin:end].view(array.dtype)
        pinned.reshape(array.shape)[...] = array
        with self._order.copying():
            moved = copy_slice(lane.cpu[begin:], lane.gpu[begin:], array.nbytes)
        self._order.copied()
        typed = moved.view(self._dtype(array.dtype))
        return typed.view(array.shape)

    def _grow(self, nbytes: int) -> CpuGpuBuffer:
        """A larger block for this lane. The old one lives while its tensors do, and its copies keep its pinned side."""
        old = self._lanes[self._lane]
        size = 2 * max(len(old.cpu), nbytes)
        lane = self._allocate(size)
        self._lanes[self._lane] = lane
        return lane

    def _allocate(self, size: int) -> CpuGpuBuffer:
        # A tensor made in inference mode could not be written outside of it, and a lane outlives the first caller.
        with torch.inference_mode(mode=False):
            pinned = self.device.type == "cuda"
            lane = CpuGpuBuffer(size, dtype=torch.uint8, device=self.device, pin_memory=pinned)
        self._order.allocated()
        return lane

    def _dtype(self, dtype: np.dtype[np.generic]) -> torch.dtype:
        if dtype not in self._dtypes:
            empty = np.empty(0, dtype)
            self._dtypes[dtype] = torch.from_numpy(empty).dtype
        return self._dtypes[dtype]
