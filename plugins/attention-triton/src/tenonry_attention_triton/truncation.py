"""Thresholds of top-k and top-p by a kernel. Worker process; imports Triton."""

from __future__ import annotations

import torch

from tenonry_attention_triton import threshold_kernel
from tenonry_torch_base.sampler.choose import row_sums

BLOCK = 4096  # weights that a program reads together
OPTIONS = {"num_warps": 16}


def thresholds(weights: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Implements `tenonry_torch_base.sampler.choose.Thresholds`."""
    rows, size = weights.shape
    limits = weights.new_empty(rows)
    sums = row_sums(weights)
    threshold_kernel.thresholds[(rows,)](
        weights, top_k, top_p, sums, limits, size, BLOCK=BLOCK, **OPTIONS
    )
    return limits
