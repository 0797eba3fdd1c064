"""Attention of a prompt's queries in pieces, with a mask, and with sinks and chosen keys if any.

Worker process, any device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.attention.choice import selection
from tenonry_torch_base.attention.math import causal_mask, masked_attention, per_head, show_later

if TYPE_CHECKING:
    from tenonry_torch_base.attention.base import CachedLayer, LayerSpec
    from tenonry_torch_base.attention.segments import Segment

MAX_MASK_ELEMENTS = 1 << 24  # for one piece of queries; with explicit scores, those of all heads


def attend_in_pieces(
    layer: CachedLayer,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segment: Segment,
    first_key: int,
) -> torch.Tensor:
    """Compute `query` [B, H, S, D] of a segment, with the keys [B, K, L, D] of positions from `first_key` up to its
    last one, in pieces of queries that bound the mask, or the explicit scores.
    """
    spec = layer.spec
    batch, heads, length, _ = query.shape
    sinks = per_head(layer.sinks)
    width = key.shape[2]
    if spec.softcap or spec.sinks or spec.indexed:
        width *= batch * heads
    piece = max(1, MAX_MASK_ELEMENTS // width)
    parts = []
    for begin in range(0, length, piece):
        count = min(piece, length - begin)
        position = segment.start + begin
        last_seen = None
        end = position + count
        if segment.last_seen is not None:
            last_seen = segment.last_seen[begin : begin + count]
            end = int(last_seen.max()) + 1
        seen = slice(max(first_seen(spec, position) - first_key, 0), end - first_key)
        queries = slice(begin, begin + count)
        mask = causal_mask(
            count,
            position,
            seen.stop - seen.start,
            spec.window,
            query.dtype,
            query.device,
            first_key + seen.start,
            spec.chunk,
        )
        if last_seen is not None:
            show_later(mask, position, first_key + seen.start, last_seen)
        if spec.indexed:
            chosen = _chosen_of(layer, segment)[:, queries]
            shown = selection(chosen, mask.shape[-1], mask.dtype, first_key + seen.start)
            mask = mask + shown[:, None]
        part = masked_attention(
            query[:, :, queries], key[:, :, seen], value[:, :, seen], mask, spec, sinks
        )
        parts.append(part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 2)


def _chosen_of(layer: CachedLayer, segment: Segment) -> torch.Tensor:
    """Positions chosen for the queries of a segment: i64[sequences, length, K]."""
    if layer.chosen is None:
        raise RuntimeError(f"{layer.spec.name} attends before anything was chosen for it")
    end = segment.token + segment.count * segment.length
    return layer.chosen[segment.token : end].view(segment.count, segment.length, -1)


def first_seen(spec: LayerSpec, position: int) -> int:
    """The first position that a query at `position` sees."""
    return int(spec.first_seen(np.array([position + 1], np.int64))[0])
