"""Attention arithmetic that backends share: masks, soft-capped scores, grouped heads. Worker process, any device.

Shapes: B independent batches, H query heads, K KV heads (H = K × group), S queries, L keys.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tenonry_worker_torch.attention.base import LayerSpec


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spec: LayerSpec,
) -> torch.Tensor:
    """One sequence on its own, no cache: `query` [S, H, D], `key`, `value` [S, K, D] → [S, H, D]."""
    length = query.shape[0]
    mask = causal_mask(length, 0, length, spec.window, query.dtype, query.device)
    q = query.transpose(0, 1)[None]  # [1, H, S, D]
    k = key.transpose(0, 1)[None]
    v = value.transpose(0, 1)[None]
    attended = masked_attention(q, k, v, mask, spec)
    return attended[0].transpose(0, 1)


def causal_mask(
    num_queries: int,
    start: int,
    num_keys: int,
    window: int,
    dtype: torch.dtype,
    device: torch.device,
    first_key: int = 0,
) -> torch.Tensor:
    """Additive mask [S, L]: the query at position `start + i` sees keys up to its own, at most `window` of them.

    Key column j stands for position `first_key + j`.
    """
    queries = torch.arange(start, start + num_queries, device=device)[:, None]
    keys = torch.arange(first_key, first_key + num_keys, device=device)[None, :]
    hidden = keys > queries
    if window:
        hidden |= keys <= queries - window
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    spec: LayerSpec,
) -> torch.Tensor:
    """`query` [B, H, S, D], `key`, `value` [B, K, L, D], additive `mask` broadcastable to [B, H, S, L]."""
    if spec.softcap:
        return softcapped_attention(query, key, value, mask, spec)
    if spec.group_size > 1 and query.device.type != "cpu":
        key = key.repeat_interleave(spec.group_size, 1)
        value = value.repeat_interleave(spec.group_size, 1)
    grouped = key.shape[1] != query.shape[1]
    if mask.dim() == 2:
        mask = mask[None, None]
    return functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        scale=spec.scaling,
        enable_gqa=grouped,
    )


def softcapped_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    spec: LayerSpec,
) -> torch.Tensor:
    """As `masked_attention`, the scores bounded by tanh before the mask (Gemma 2, arXiv:2408.00118, section 2)."""
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(spec.group_size, 1)
        value = value.repeat_interleave(spec.group_size, 1)
    # Scaled before the product: in float16 the scores would leave its range.
    scaled = query * (spec.scaling / spec.softcap)
    scores = torch.matmul(scaled, key.transpose(-1, -2))
    scores.tanh_()
    scores.mul_(spec.softcap)
    scores.add_(mask)
    weights = torch.softmax(scores, -1, dtype=torch.float32)
    return torch.matmul(weights.to(value.dtype), value)
