"""Attention arithmetic that backends share: masks, soft-capped scores, grouped heads. Worker process, any device.

Shapes: B independent batches, H query heads, K KV heads (H = K × group), S queries, L keys.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from tenonry_torch_base.attention.base import LayerSpec


def causal_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    spec: LayerSpec,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """One sequence on its own, no cache: `query` [S, H, D], `key`, `value` [S, K, D] → [S, H, D]."""
    length = query.shape[0]
    mask = causal_mask(length, 0, length, spec.window, query.dtype, query.device, chunk=spec.chunk)
    q = query.transpose(0, 1)[None]  # [1, H, S, D]
    k = key.transpose(0, 1)[None]
    v = value.transpose(0, 1)[None]
    attended = masked_attention(q, k, v, mask, spec, per_head(sinks))
    return attended[0].transpose(0, 1)


def per_head(sinks: torch.Tensor | None) -> torch.Tensor | None:
    """A logit per head [H] as [H, 1, 1], for scores [B, H, S, L]."""
    return None if sinks is None else sinks[:, None, None]


def causal_mask(
    num_queries: int,
    start: int,
    num_keys: int,
    window: int,
    dtype: torch.dtype,
    device: torch.device,
    first_key: int = 0,
    chunk: int = 0,
) -> torch.Tensor:
    """Additive mask [S, L]: the query at position `start + i` attends to keys up to its own, at most `window` of them,
    and none before its chunk of `chunk` positions.

    Key column j is position `first_key + j`.
    """
    queries = torch.arange(start, start + num_queries, device=device)[:, None]
    keys = torch.arange(first_key, first_key + num_keys, device=device)[None, :]
    hidden = keys > queries
    if window:
        hidden |= keys <= queries - window
    if chunk:
        hidden |= keys < queries // chunk * chunk
    mask = torch.zeros(hidden.shape, dtype=dtype, device=device)
    return mask.masked_fill_(hidden, float("-inf"))


def show_later(
    mask: torch.Tensor, start: int, first_key: int, last_seen: NDArray[np.int64]
) -> None:
    """Make the keys up to `last_seen[i]` visible to the query at position `start + i` in a causal mask [S, L].

    Key column j is position `first_key + j`.
    """
    queries = torch.arange(start, start + mask.shape[0], device=mask.device)[:, None]
    keys = torch.arange(first_key, first_key + mask.shape[1], device=mask.device)
    last = torch.as_tensor(last_seen, device=mask.device)[:, None]
    mask.masked_fill_((keys > queries) & (keys <= last), 0.0)


def masked_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    spec: LayerSpec,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """`query` [B, H, S, D], `key`, `value` [B, K, L, D], additive `mask` broadcastable to [B, H, S, L]; `sinks`, if
    there are any, broadcastable to [B, H, S, 1].
    """
    if spec.softcap or sinks is not None:
        return scored_attention(query, key, value, mask, spec, sinks)
    if spec.group_size > 1 and query.device.type != "cpu":
        key = key.repeat_interleave(spec.group_size, 1)
        value = value.repeat_interleave(spec.group_size, 1)
    grouped = key.shape[1] != query.shape[1]
    if mask.dim() == 2:
        mask = mask[None, None]
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=spec.scaling, enable_gqa=grouped
    )


def scored_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    spec: LayerSpec,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `masked_attention`, for scores that fused kernels do not support: bounded by tanh before the mask (Gemma 2,
    arXiv:2408.00118, section 2), and with a sink, an additional score with a share of the softmax and no value
    (gpt-oss, arXiv:2508.10925, section 2; arXiv:2309.17453).
    """
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(spec.group_size, 1)
        value = value.repeat_interleave(spec.group_size, 1)
    # Scaled before the product: in float16 the scores would leave its range.
    scaled = query * (spec.scaling / spec.softcap if spec.softcap else spec.scaling)
    scores = torch.matmul(scaled, key.transpose(-1, -2))
    if spec.softcap:
        scores.tanh_()
        scores.mul_(spec.softcap)
    scores.add_(mask)
    weights = softmax_with_sinks(scores, sinks, torch.float32)
    return torch.matmul(weights.to(value.dtype), value)


def softmax_with_sinks(
    scores: torch.Tensor, sinks: torch.Tensor | None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Softmax of `scores` [..., L]; with `sinks` [..., 1], the remaining weights after the share of the sinks."""
    if sinks is None:
        return torch.softmax(scores, -1, dtype=dtype)
    sink = sinks.to(scores.dtype).expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat((scores, sink), -1), -1, dtype=dtype)
    return weights[..., :-1]
