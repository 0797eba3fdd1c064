"""Floats to 8 bits with one scale per row of a matrix. Worker process."""

from __future__ import annotations

import torch

from tenonry_torch_base.quantisations import QuantisedWeight

LARGEST = 127  # −128 is left out, so that both signs reach as far
CHUNK = 1 << 18  # elements rounded together: they fit into the cache
TINY = torch.finfo(torch.float32).tiny * LARGEST


def rounded(weight: torch.Tensor) -> QuantisedWeight:
    """Symmetric: the largest element of each row becomes ±127. `weight` [out, in] may be mapped from a file."""
    rows, columns = weight.shape
    values = torch.empty(rows, columns, dtype=torch.int8)
    scales = torch.empty(rows, 1)
    step = max(1, CHUNK // max(columns, 1))
    for begin in range(0, rows, step):
        end = begin + step
        part = weight[begin:end].float()
        largest = torch.linalg.vector_norm(part, torch.inf, 1, keepdim=True).clamp_min_(TINY)
        scales[begin:end] = largest / LARGEST
        values[begin:end] = torch.mul(part, LARGEST / largest).round_()
    return QuantisedWeight(bits=8, values=values, scales=scales)
