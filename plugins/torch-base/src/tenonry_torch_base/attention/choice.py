"""A choice of keys per query as a mask. Worker process, any device."""

from __future__ import annotations

import torch


def selection(
    chosen: torch.Tensor, num_keys: int, dtype: torch.dtype, first_key: int = 0
) -> torch.Tensor:
    """Additive mask [..., num_keys] that hides all keys but the `chosen` positions i64[..., K]; key 0 is at position
    `first_key`.
    """
    at = chosen - first_key
    at = at.masked_fill((at < 0) | (at >= num_keys), num_keys)
    mask = torch.full(
        (*chosen.shape[:-1], num_keys + 1), float("-inf"), dtype=dtype, device=chosen.device
    )
    return mask.scatter_(-1, at, 0.0)[..., :num_keys]
