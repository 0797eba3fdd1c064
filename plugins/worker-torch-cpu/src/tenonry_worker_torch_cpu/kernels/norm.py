"""The norms of a fused model by a kernel. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.norm import RMSNorm
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable

FEW_TOKENS = 128  # more of them are normalised by torch, on all cores


class KernelNorm(RMSNorm):
    """A norm by a kernel, for few rows. `own`: the original norm, for all others."""

    __slots__ = ("kernel", "own")

    def __init__(self, own: RMSNorm, kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.own = own
        self.kernel = kernel
        self.weight = own.weight
        self.eps = own.eps
        self.is_offset = own.is_offset

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) > FEW_TOKENS or x.dim() != 2 or not x.is_contiguous():
            return self.own(x)
        return self.kernel(x)


def candidates(own: RMSNorm, kernel: KernelNorm, size: int, count: int) -> Candidates:
    """Both over `count` random rows."""
    x = torch.randn(count, size)
    return Candidates(lambda: (own(x),), lambda: (kernel(x),))
