"""Floats to 4 bits with one scale per 32 neighbours of a row. Worker process.

The 16 values reach from −8 to 7, so a group's largest element becomes −8, by a negative scale if it is positive. Then
the scale becomes the one with the least squared error for these values, and the group is rounded with it once more.
"""

from __future__ import annotations

import torch

from tenonry_torch_base.quantisations import QuantisedWeight

GROUP = 32
LOWEST = -8
HIGHEST = 7
CHUNK = 1 << 18  # elements rounded together
TINY = 1e-30


def rounded4(weight: torch.Tensor) -> QuantisedWeight:
    """`weight` [out, in], in a multiple of 32, may be mapped from a file. Scales are numbers in bfloat16."""
    rows, columns = weight.shape
    groups = columns // GROUP
    values = torch.empty(rows, columns, dtype=torch.int8)
    scales = torch.empty(rows, groups)
    step = max(1, CHUNK // max(columns, 1))
    for begin in range(0, rows, step):
        end = begin + step
        part = weight[begin:end].float()
        found, scale = _rounded(part.view(-1, groups, GROUP))
        values[begin:end] = found.view(-1, columns)
        scales[begin:end] = scale
    return QuantisedWeight(bits=4, values=values, scales=scales)


def _rounded(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`part` [rows, groups, 32] → its values in 4 bits, and scales [rows, groups]."""
    low, high = part.aminmax(dim=-1, keepdim=True)
    largest = torch.where(high > -low, high, low)
    scale = _in_half(largest / LOWEST)
    values = torch.div(part, scale)
    values.round_().clamp_(LOWEST, HIGHEST)
    products = torch.linalg.vecdot(part, values)
    squares = torch.linalg.vecdot(values, values)
    scale = _in_half((products / squares)[..., None])
    torch.div(part, scale, out=values)
    values.round_().clamp_(LOWEST, HIGHEST)
    return values, scale[..., 0]


def _in_half(scale: torch.Tensor) -> torch.Tensor:
    """As bfloat16 holds it; 1 for a group of zeros, whose values are 0 then."""
    halves = scale.bfloat16().float()
    return torch.where(halves.abs() > TINY, halves, 1.0)
