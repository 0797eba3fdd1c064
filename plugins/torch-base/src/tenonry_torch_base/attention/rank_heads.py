"""A rank's attention heads if its model's plan assigns all of them to every rank. Worker process.

Some plans gather query, key and value, because the model's code slices or normalises them as a whole, and the output
projection uses each rank's part. Only that part has to be computed, and only its K/V have to be stored. The self check,
whose reference run attends with all heads, shows that nothing between the two reads the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tenonry_torch_base.parallel.layers import RowLinear

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import nn

    from tenonry_torch_base.attention.base import LayerSpec


class RankHeads:
    """`query` and `kv` are slices of the heads; `num_heads`: number in the model's code."""

    __slots__ = ("kv", "num_heads", "query")

    def __init__(self, num_heads: int, query: slice, kv: slice) -> None:
        self.num_heads = num_heads
        self.query = query
        self.kv = kv

    def of(self, spec: LayerSpec) -> LayerSpec:
        """The layer as the backend sees it."""
        return replace(
            spec,
            num_heads=self.query.stop - self.query.start,
            num_kv_heads=self.kv.stop - self.kv.start,
        )

    def attend(
        self,
        layer: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        """`query` [T, all heads, size], `key`, `value` [T, all KV heads, size] → [T, all heads, size]; zeros for heads
        of other ranks.
        """
        out = query.new_zeros(query.shape[0], self.num_heads, value.shape[2])
        out[:, self.query] = layer(query[:, self.query], key[:, self.kv], value[:, self.kv])
        return out


def rank_heads_of(attention: nn.Module, spec: LayerSpec) -> RankHeads | None:
    """Return this rank's heads of a layer; None if the layer has no others, or they cannot be divided evenly."""
    outputs = [
        child
        for child in attention.children()
        if isinstance(child, RowLinear) and child.splits_input
    ]
    if len(outputs) != 1:
        return None
    output = outputs[0]
    rank = output.group.rank
    size = output.group.size
    num_heads = spec.num_heads
    num_kv_heads = spec.num_kv_heads
    if output.in_features * size != num_heads * spec.value_size or num_heads % size:
        return None
    if num_kv_heads % size and size % num_kv_heads:
        return None
    heads = num_heads // size
    first_kv = rank * num_kv_heads // size
    return RankHeads(
        num_heads,
        query=slice(rank * heads, (rank + 1) * heads),
        kv=slice(first_kv, first_kv + max(1, num_kv_heads // size)),
    )
