"""Order of copies and kernels on a device. Worker process.

Copies have a separate stream, so that the inputs of one step are copied while the previous one computes. Three rules
ensure correctness: a kernel that reads an input waits for its copy; a copy into memory that an earlier step read waits
for that step's kernels; and the host writes into pinned memory again only when the copies out of it have run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


class InOrder:
    """A device that does one thing after another: the CPU."""

    def begin_step(self, lane: int) -> None:
        """The memory of `lane` is about to be written."""

    def end_step(self, lane: int) -> None:
        """Record the launch of all kernels that read the memory of `lane`."""

    def copying(self) -> AbstractContextManager[object]:
        """Return a context in which copies are launched."""
        return nullcontext()

    def copied(self) -> None:
        """Order later kernels after a launched copy."""

    def allocated(self) -> None:
        """Order later copies after the allocation of zeroed device memory."""


class StreamOrder(InOrder):
    """One stream for copies in addition to the current one. `lanes`: number of memory sets, used in rotation."""

    def __init__(self, device: torch.device, lanes: int) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)
        self._sent = [torch.cuda.Event() for _ in range(lanes)]
        self._read = [torch.cuda.Event() for _ in range(lanes)]
        # Recorded for every copy: each wait refers to the record before it.
        self._arrived = torch.cuda.Event()

    def begin_step(self, lane: int) -> None:
        self._sent[lane].synchronize()
        self._copies.wait_event(self._read[lane])

    def end_step(self, lane: int) -> None:
        kernels = torch.cuda.current_stream(self._device)
        self._sent[lane].record(self._copies)
        self._read[lane].record(kernels)

    def copying(self) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._copies)

    def copied(self) -> None:
        kernels = torch.cuda.current_stream(self._device)
        self._arrived.record(self._copies)
        kernels.wait_event(self._arrived)

    def allocated(self) -> None:
        kernels = torch.cuda.current_stream(self._device)
        self._copies.wait_stream(kernels)
