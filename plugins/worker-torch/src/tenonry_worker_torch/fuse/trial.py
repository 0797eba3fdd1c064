"""Common parts of comparisons of fused layers with their modules: random weights and tolerances. Worker process."""

from __future__ import annotations

import copy

import torch
from torch import nn

TOLERANCE = 1e-4  # relative error (L2) taken for rounding in float32
MAX_PARAMETERS = 1 << 28  # of one layer that is worth copying in float32: 1 GiB
STORE = 524_287  # random numbers


def is_small(module: nn.Module) -> bool:
    """Return True if the module is worth copying."""
    return sum(weight.numel() for weight in module.parameters()) <= MAX_PARAMETERS


def is_same(got: torch.Tensor, wanted: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    """Compare up to rounding, by default that of float32."""
    difference = (got - wanted).norm()
    return bool(difference <= tolerance * wanted.norm())


def random_copy(module: nn.Module) -> nn.Module:
    """Copy of the module in float32, on its device, with random weights; its own are not read. It shares the module's
    configuration.
    """
    kept: dict[int, object] = {
        id(weight): nn.Parameter(
            torch.empty(weight.shape, dtype=torch.float32, device=weight.device),
            requires_grad=False,
        )
        for weight in module.parameters()
    }
    for part in module.modules():
        config = vars(part).get("config")
        kept[id(config)] = config
    copied = copy.deepcopy(module, kept).to(torch.float32)  # its buffers
    randomise(copied)
    return copied


def randomise(module: nn.Module) -> None:
    """Set revealing random weights. Those of large matrices repeat a prime number of random numbers, so that no two
    rows are equal.
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
            _fill(weight.detach().view(-1), store, taken % STORE, weight.shape[-1] ** -0.5)
            taken += count + 1


def _fill(weight: torch.Tensor, store: torch.Tensor, place: int, scale: float) -> None:
    """Fill `weight` [N] with the values of `store` from `place` on, cyclically, times `scale`."""
    done = 0
    while done < len(weight):
        count = min(len(store) - place, len(weight) - done)
        torch.mul(store[place : place + count], scale, out=weight[done : done + count])
        done += count
        place = 0
