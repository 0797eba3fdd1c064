"""What the comparisons of parts with their modules have in common: random weights, and how near is near. Worker
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import nn

TOLERANCE = 1e-4  # relative error (L2) taken for rounding in float32
MAX_PARAMETERS = 1 << 28  # of one layer that is worth copying in float32: 1 GiB
STORE = 1_048_573  # random numbers


def is_small(module: nn.Module) -> bool:
    """Whether the module is worth copying."""
    return sum(weight.numel() for weight in module.parameters()) <= MAX_PARAMETERS


def is_same(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """But for rounding, by default that of float32."""
    difference = (got - wanted).norm()
    return bool(difference <= tolerance * wanted.norm())


def randomise(module: nn.Module) -> None:
    """Weights that hide nothing. Those of large matrices repeat a store of random numbers, which is as long as a prime
    number, so that no two rows are alike.
    """
    store: torch.Tensor | None = None
    taken = 0
    for weight in module.parameters():
        count = weight.numel()
        if weight.dim() == 1:
            weight.uniform_(-0.5, 0.5).add_(0.25)
        elif count <= STORE:
            weight.normal_(0.0, weight.shape[-1] ** -0.5)
        else:
            if store is None:
                store = torch.randn(STORE, device=weight.device)
            offset = taken % STORE
            repeated = store.repeat(-(-(count + offset) // STORE))
            weight.copy_(repeated[offset : offset + count].view_as(weight))
            weight.mul_(weight.shape[-1] ** -0.5)
            taken += count + 1
