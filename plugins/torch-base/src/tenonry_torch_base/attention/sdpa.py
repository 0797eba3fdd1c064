"""The reference backend: blocks gathered by index, `scaled_dot_product_attention` for everything. Worker process, any
device.

Layout: a layer is [num_blocks, 2 × num_kv_heads, block_size, head_size]; keys and values have a tensor each if their
heads differ in size. The last dimension is wider if each vector is stored with a scale (`KVStorage`). Contents of a
block are contiguous, and one `index_select` over (block, head) gives each row's keys and values contiguous per head. A
decode step has no Python loop over sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from tenonry_torch_base.attention.base import (
    GROUPS,
    STORAGE,
    AttentionBackend,
    AttentionBatch,
    CachedLayer,
    LayerCache,
    LayerSpec,
)
from tenonry_torch_base.attention.choice import selection
from tenonry_torch_base.attention.math import scored_attention
from tenonry_torch_base.attention.pieces import attend_in_pieces, first_seen
from tenonry_torch_base.attention.sdpa_plan import SdpaPlan, entered_blocks
from tenonry_torch_base.attention.segments import Segment
from tenonry_torch_base.attention.storage import paged_zeros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.attention.sdpa_plan import DecodeGroup


class SdpaBackend(AttentionBackend):
    """See the module. Supports every head size, data type, window and soft cap, chunks and sinks."""

    name: ClassVar[str] = "sdpa"
    features: ClassVar[frozenset[str]] = frozenset(
        {"chunk", "sinks", "indexed", "spans", GROUPS, STORAGE}
    )

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # [layers, blocks, heads, slots, size], of layers of one shape.
        self._pools: list[torch.Tensor] = []
        alike: dict[tuple[int, int, int], list[LayerSpec]] = {}
        for layer in self.layers:
            shape = (layer.num_kv_heads, layer.key_size, layer.value_size)
            alike.setdefault(shape, []).append(layer)
        caches: dict[str, LayerCache] = {}
        for layers in alike.values():
            caches |= self._allocate_alike(layers)
        return caches

    def adopt(self, other: SdpaBackend, caches: Sequence[LayerCache]) -> dict[str, LayerCache]:
        self.num_blocks = other.num_blocks
        self.block_size = other.block_size
        count = len(self.layers)
        self._pools = [pool[:count] for pool in other._pools]
        return {layer.name: cache for layer, cache in zip(self.layers, caches, strict=False)}

    def _allocate_alike(self, layers: list[LayerSpec]) -> dict[str, LayerCache]:
        heads = layers[0].num_kv_heads
        key_size = layers[0].key_size
        value_size = layers[0].value_size
        if key_size == value_size:
            pool = self._pool(len(layers), 2 * heads, key_size)
            return {
                layer.name: LayerCache(*both.chunk(2, 1), both)
                for layer, both in zip(layers, pool, strict=True)
            }
        keys = self._pool(len(layers), heads, key_size)
        values = self._pool(len(layers), heads, value_size)
        return {
            layer.name: LayerCache(key, value)
            for layer, key, value in zip(layers, keys, values, strict=True)
        }

    def _pool(self, num_layers: int, heads: int, size: int) -> torch.Tensor:
        width = self.storage.width(size)
        shape = (num_layers, self.num_blocks, heads, self.block_size, width)
        pool = paged_zeros(shape, self.storage.kept_dtype, self.device)
        self._pools.append(pool)
        return pool

    def plan(self, batch: AttentionBatch) -> SdpaPlan:
        self.clear_entered(batch)
        return SdpaPlan(batch, self.block_size)

    def clear_entered(self, batch: AttentionBatch) -> None:
        """Zero, in all layers, the blocks that rows begin in this step and do not fill: they are read as a whole."""
        if batch.full_plan is not None:  # the same step's last layer
            return
        blocks = entered_blocks(batch, self.block_size)
        if not len(blocks):
            return
        self.clear(batch.put("entered", blocks))

    def clear(self, blocks: torch.Tensor) -> None:
        """Zero these blocks i64[N] in all layers."""
        for pool in self._pools:
            pool.index_fill_(1, blocks, 0)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        key, value, _ = self.write(layer.kv_cache[0], key, value, plan, both)
        if not plan.num_queries:  # a pruned last layer of a step without sampling rows
            return query.new_empty(0, layer.spec.num_heads, layer.spec.value_size)
        if plan.decode_tokens is None:
            return self._decode(layer, query, plan)
        out = query.new_empty(plan.num_queries, layer.spec.num_heads, layer.spec.value_size)
        self.prefill(layer, query, key, value, plan, out)
        self.decode_gathered(layer, query, plan, out)
        return out

    def write(
        self,
        cache: LayerCache,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Write all K/V of the step into their slots; returns them as stored: key, value, and both as one tensor [T, 2
        × heads, size] if sizes permit.
        """
        if cache.both is None:
            key = self._write_lines(cache.key, key, plan)
            value = self._write_lines(cache.value, value, plan)
            return key, value, None
        if both is None:
            both = torch.cat((key, value), 1)
        both = self._write_lines(cache.both, both, plan)
        return *both.chunk(2, 1), both

    def _write_lines(self, cache: torch.Tensor, new: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        """Write `new` [T, C, size] into `cache` [blocks, C, block_size, width]; returns the values as read back."""
        return self.storage.write(cache, plan.lines(new.shape[1]), new)

    # ------------------------------------------------------------------ decode: one query per row, rows padded together

    def decode_gathered(
        self, layer: CachedLayer, query: torch.Tensor, plan: SdpaPlan, out: torch.Tensor
    ) -> None:
        """The decoding rows of a mixed step, into their places in `out`."""
        tokens = plan.decode_tokens
        if tokens is not None and len(plan.decode_order):
            decoded = self._decode(layer, query[tokens], plan)
            out.index_copy_(0, tokens, decoded)

    def _decode(self, layer: CachedLayer, query: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        """`query` [R, H, D] in decode order → [R, H, D]."""
        parts = []
        chosen = layer.chosen if layer.spec.indexed else None
        if chosen is not None and plan.decode_tokens is not None:
            chosen = chosen[plan.decode_tokens]
        for group in plan.decode_groups(layer.spec, self.dtype):
            queries = query[group.begin : group.end]
            shown = None if chosen is None else chosen[group.begin : group.end]
            parts.append(self._decode_group(layer, queries, group, shown))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode_group(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        group: DecodeGroup,
        chosen: torch.Tensor | None,
    ) -> torch.Tensor:
        spec = layer.spec
        mask = group.mask
        if chosen is not None:
            mask = mask + selection(chosen, mask.shape[-1], mask.dtype)[:, None, None]
        rows = group.end - group.begin
        key, value = self.gather(layer.kv_cache[0], group.index, rows, spec)
        grouped = query.reshape(rows, spec.num_kv_heads, spec.group_size, spec.key_size)
        attended = self.decode_attention(grouped, key, value, mask, layer)
        return attended.reshape(rows, spec.num_heads, spec.value_size)

    def decode_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        layer: CachedLayer,
    ) -> torch.Tensor:
        """`query` [R, K, group, D], `key`, `value` [R, K, L, D], `mask` [R, 1, 1, L] → [R, K, group, D].

        The query heads of one KV head are its query rows, so keys are neither repeated nor read twice.
        """
        spec = layer.spec
        if spec.softcap or spec.sinks:
            sinks = layer.sinks
            if sinks is not None:
                sinks = sinks.view(spec.num_kv_heads, spec.group_size, 1)
            return scored_attention(query, key, value, mask, spec, sinks)
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=spec.scaling
        )

    def gather(
        self, cache: LayerCache, index: torch.Tensor, rows: int, spec: LayerSpec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, K, L, size] of the blocks that `block_index` names."""
        heads = spec.num_kv_heads
        read = self.storage.read
        if cache.both is not None:
            found = read(cache.both, index, self.block_size, spec.key_size)
            key, value = found.view(2, rows, heads, -1, spec.key_size).unbind()
            return key, value
        key = read(cache.key, index, self.block_size, spec.key_size)
        value = read(cache.value, index, self.block_size, spec.value_size)
        return (
            key.view(rows, heads, -1, spec.key_size),
            value.view(rows, heads, -1, spec.value_size),
        )

    # ------------------------------------------------------------------ keys alone, by which models choose

    def write_keys(self, layer: CachedLayer, key: torch.Tensor, plan: SdpaPlan) -> None:
        """`key` [T, num_kv_heads, size] of the whole step into their slots."""
        self._write_lines(layer.kv_cache[0].key, key, plan)

    def gather_keys(self, layer: CachedLayer, index: torch.Tensor, rows: int) -> torch.Tensor:
        """Keys [R, L, size] of a layer with one KV head, of the blocks that `block_index` names."""
        size = layer.spec.key_size
        found = self.storage.read(layer.kv_cache[0].key, index, self.block_size, size)
        return found.view(rows, -1, size)

    # ------------------------------------------------------------------ prefill: several queries per row

    def prefill(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        out: torch.Tensor,
    ) -> None:
        """Every segment of the step, into its place in `out`."""
        for segment in plan.prefill:
            end = segment.token + segment.count * segment.length
            span = slice(segment.token, end)
            out[span] = self._prefill(layer, segment, plan, query[span], key[span], value[span])

    def _prefill(
        self,
        layer: CachedLayer,
        segment: Segment,
        plan: SdpaPlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        if segment.start:
            return self._prefill_with_context(layer, segment, plan, query)
        spec = layer.spec
        q = _head_major(query, segment)
        k = _head_major(key, segment)
        v = _head_major(value, segment)
        reach = spec.window or spec.chunk
        is_cut = reach and segment.length > reach
        is_plain = not is_cut and segment.last_seen is None
        if spec.softcap or spec.sinks or spec.indexed or not is_plain:
            out = attend_in_pieces(layer, q, k, v, segment, 0)
        else:
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=spec.scaling, enable_gqa=spec.group_size > 1
            )
        return out.transpose(1, 2).flatten(0, 1)

    def _prefill_with_context(
        self, layer: CachedLayer, segment: Segment, plan: SdpaPlan, query: torch.Tensor
    ) -> torch.Tensor:
        """One chunk of a prompt whose earlier tokens are in the cache."""
        spec = layer.spec
        end = segment.start + segment.length
        first_block = first_seen(spec, segment.start) // self.block_size
        end_block = -(-end // self.block_size)
        index = plan.context_index(segment, spec, first_block, end_block)
        first_key = first_block * self.block_size
        key, value = self.gather(layer.kv_cache[0], index, 1, spec)
        key = key[:, :, : end - first_key]
        value = value[:, :, : end - first_key]
        q = query.transpose(0, 1)[None]
        out = attend_in_pieces(layer, q, key, value, segment, first_key)
        return out[0].transpose(0, 1)


def _head_major(tensor: torch.Tensor, segment: Segment) -> torch.Tensor:
    """[count · length, heads, size] → [count, heads, length, size], contiguous: the CPU's kernel is a fifth faster on
    contiguous heads.
    """
    size = tensor.shape[-1]
    by_token = tensor.reshape(segment.count, segment.length, -1, size)
    return by_token.transpose(1, 2).contiguous()
