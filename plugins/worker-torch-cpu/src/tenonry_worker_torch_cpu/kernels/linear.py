"""Linear layers with packed weights by a kernel that reads the same memory, for few rows. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from tenonry_torch_base.step_kernels import LinearKernel
    from tenonry_worker_torch.fuse.linear import Packing
    from tenonry_worker_torch_cpu.packing.onednn import PackedLinear
    from tenonry_worker_torch_cpu.packing.widened import BlockedLinear

TOLERANCE = 1e-2  # relative error (L2): results are rounded to 16 bits


class KernelLinear:
    """Called like `PackedLinear`. `own`: the original layer, for more than `most` rows."""

    __slots__ = ("kernel", "most", "own")

    def __init__(self, own: PackedLinear | BlockedLinear, kernel: LinearKernel, most: int) -> None:
        self.own = own
        self.kernel = kernel
        self.most = most

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            return self.own(x)
        return self.kernel(x.contiguous())  # the norm of few rows may return a view

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        if len(x) > self.most:
            return self.own.add(x, other)
        return self.kernel(x.contiguous(), other.contiguous())

    def packed(self, _packing: Packing) -> KernelLinear:
        return self


def candidates(own: PackedLinear | BlockedLinear, kernel: LinearKernel, count: int) -> Candidates:
    """Both over `count` random rows."""
    inputs = own.shape[1]
    x = torch.randn(count, inputs).bfloat16()
    return Candidates(lambda: (own(x),), lambda: (kernel(x),), TOLERANCE)
