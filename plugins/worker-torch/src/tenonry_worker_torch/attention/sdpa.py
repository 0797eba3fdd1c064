"""The reference backend: blocks gathered by index, `scaled_dot_product_attention` for everything. Worker process, any
device.

Layout: a layer is [num_blocks, 2 × num_kv_heads, block_size, head_size]; keys and values have a tensor each where their
heads differ in size. What a block holds is contiguous, and one `index_select` over (block, head) gives each row's keys
and values contiguous per head. A decode step has no Python loop over sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from tenonry_worker_torch.attention.base import (
    AttentionBackend,
    AttentionBatch,
    CachedLayer,
    LayerCache,
    LayerSpec,
)
from tenonry_worker_torch.attention.math import causal_mask, masked_attention, softcapped_attention
from tenonry_worker_torch.attention.sdpa_plan import SdpaPlan, entered_blocks
from tenonry_worker_torch.attention.segments import Segment
from tenonry_worker_torch.attention.storage import zeros

if TYPE_CHECKING:
    from tenonry_worker_torch.attention.sdpa_plan import DecodeGroup

MAX_MASK_ELEMENTS = 1 << 24  # of one chunk of prefill queries


class SdpaBackend(AttentionBackend):
    """See the module. Supports every head size, data type, window and soft cap."""

    name: ClassVar[str] = "sdpa"

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._pools: list[
            torch.Tensor
        ] = []  # [layers, blocks, heads, slots, size], of layers of one shape
        alike: dict[tuple[int, int, int], list[LayerSpec]] = {}
        for layer in self.layers:
            alike.setdefault((layer.num_kv_heads, layer.key_size, layer.value_size), []).append(
                layer
            )
        return {
            name: cache
            for layers in alike.values()
            for name, cache in self._allocate_alike(layers).items()
        }

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
            layer.name: LayerCache(*pair) for layer, *pair in zip(layers, keys, values, strict=True)
        }

    def _pool(
        self,
        num_layers: int,
        heads: int,
        size: int,
    ) -> torch.Tensor:
        self._pools.append(
            zeros(
                (num_layers, self.num_blocks, heads, self.block_size, size), self.dtype, self.device
            )
        )
        return self._pools[-1]

    def plan(self, batch: AttentionBatch) -> SdpaPlan:
        self.clear_entered(batch)
        return SdpaPlan(batch, self.block_size)

    def clear_entered(self, batch: AttentionBatch) -> None:
        """Zero, in all layers, the blocks that rows begin in this step and do not fill: they are read as a whole."""
        if batch.full_plan is None:  # otherwise this is the same step's last layer
            blocks = entered_blocks(batch, self.block_size)
            if len(blocks):
                index = batch.put("entered", blocks)
                for pool in self._pools:
                    pool.index_fill_(1, index, 0)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.write(
            layer.kv_cache[0],
            key,
            value,
            plan,
            both,
        )
        if not plan.num_queries:  # a pruned last layer of a step in which no row samples
            return query.new_empty(0, layer.spec.num_heads, layer.spec.value_size)
        if plan.decode_tokens is None:
            return self._decode(layer, query, plan)
        out = query.new_empty(plan.num_queries, layer.spec.num_heads, layer.spec.value_size)
        self.prefill(
            layer,
            query,
            key,
            value,
            plan,
            out,
        )
        self.decode_gathered(layer, query, plan, out)
        return out

    def write(
        self,
        cache: LayerCache,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None,
    ) -> torch.Tensor | None:
        """All K/V of the step into their slots; returns them as one tensor [T, 2 × heads, size] where sizes allow."""
        if cache.both is None:
            for tensor, new in ((cache.key, key), (cache.value, value)):
                self._write_lines(tensor, new, plan)
            return None
        if both is None:
            both = torch.cat((key, value), 1)
        self._write_lines(cache.both, both, plan)
        return both

    def _write_lines(
        self,
        cache: torch.Tensor,
        new: torch.Tensor,
        plan: SdpaPlan,
    ) -> None:
        """`new` [T, C, size] into `cache` [blocks, C, block_size, size]."""
        lines = plan.lines(new.shape[1])
        cache.view(-1, cache.shape[3]).index_copy_(0, lines, new.reshape(-1, cache.shape[3]))

    # ------------------------------------------------------------------ decode: one query per row, rows padded together

    def decode_gathered(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        plan: SdpaPlan,
        out: torch.Tensor,
    ) -> None:
        """The decoding rows of a mixed step, into their places in `out`."""
        if plan.decode_tokens is not None and len(plan.decode_order):
            out.index_copy_(
                0, plan.decode_tokens, self._decode(layer, query[plan.decode_tokens], plan)
            )

    def _decode(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        plan: SdpaPlan,
    ) -> torch.Tensor:
        """`query` [R, H, D] in decode order → [R, H, D]."""
        groups = plan.decode_groups(layer.spec, self.dtype)
        parts = [
            self._decode_group(layer, query[group.begin : group.end], group) for group in groups
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode_group(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        group: DecodeGroup,
    ) -> torch.Tensor:
        spec = layer.spec
        rows = group.end - group.begin
        key, value = self.gather(layer.kv_cache[0], group.index, rows, spec)
        grouped = query.reshape(rows, spec.num_kv_heads, spec.group_size, spec.key_size)
        return self.decode_attention(
            grouped,
            key,
            value,
            group.mask,
            spec,
        ).reshape(rows, spec.num_heads, spec.value_size)

    def decode_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        spec: LayerSpec,
    ) -> torch.Tensor:
        """`query` [R, K, group, D], `key`, `value` [R, K, L, D], `mask` [R, 1, 1, L] → [R, K, group, D].

        The query heads of one KV head are its query rows, so keys are neither repeated nor read twice.
        """
        if spec.softcap:
            return softcapped_attention(
                query,
                key,
                value,
                mask,
                spec,
            )
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            scale=spec.scaling,
        )

    def gather(
        self,
        cache: LayerCache,
        index: torch.Tensor,
        rows: int,
        spec: LayerSpec,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, K, L, size] of the blocks that `block_index` names."""
        heads = spec.num_kv_heads
        if cache.both is not None:
            found = cache.both.view(2 * heads * self.num_blocks, -1).index_select(0, index)
            key, value = found.view(
                2,
                rows,
                heads,
                -1,
                spec.key_size,
            ).unbind()
            return key, value
        return (
            cache.key.view(heads * self.num_blocks, -1)
            .index_select(0, index)
            .view(rows, heads, -1, spec.key_size),
            cache.value.view(heads * self.num_blocks, -1)
            .index_select(0, index)
            .view(rows, heads, -1, spec.value_size),
        )

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
            span = slice(segment.token, segment.token + segment.count * segment.length)
            out[span] = self._prefill(
                layer.spec,
                layer.kv_cache[0],
                segment,
                plan,
                query[span],
                key[span],
                value[span],
            )

    def _prefill(
        self,
        spec: LayerSpec,
        cache: LayerCache,
        segment: Segment,
        plan: SdpaPlan,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
    ) -> torch.Tensor:
        if segment.start:
            return self._prefill_with_context(
                spec,
                cache,
                segment,
                plan,
                query,
            )
        shape = (segment.count, segment.length, -1)
        # The CPU's kernel is a fifth faster on heads that lie one behind the other.
        q, k, v = (
            t.reshape(*shape, t.shape[-1]).transpose(1, 2).contiguous() for t in (query, key, value)
        )
        plain = not spec.softcap and not (spec.window and segment.length > spec.window)
        if plain:
            out = functional.scaled_dot_product_attention(
                q,
                k,
                v,
                is_causal=True,
                scale=spec.scaling,
                enable_gqa=spec.group_size > 1,
            )
        else:
            mask = causal_mask(
                segment.length,
                0,
                segment.length,
                spec.window,
                q.dtype,
                q.device,
            )
            out = masked_attention(
                q,
                k,
                v,
                mask,
                spec,
            )
        return out.transpose(1, 2).flatten(0, 1)

    def _prefill_with_context(
        self,
        spec: LayerSpec,
        cache: LayerCache,
        segment: Segment,
        plan: SdpaPlan,
        query: torch.Tensor,
    ) -> torch.Tensor:
        """One chunk of a prompt whose earlier tokens are in the cache; queries go in pieces that bound the mask."""
        end = segment.start + segment.length
        first_block = (
            max(0, segment.start + 1 - spec.window) // self.block_size if spec.window else 0
        )
        index = plan.context_index(segment, spec, first_block, -(-end // self.block_size))
        first_key = first_block * self.block_size
        key, value = (kept[:, :, : end - first_key] for kept in self.gather(cache, index, 1, spec))
        q = query.transpose(0, 1)[None]
        piece = max(1, MAX_MASK_ELEMENTS // (end - first_key))
        parts = []
        for begin in range(0, segment.length, piece):
            count = min(piece, segment.length - begin)
            mask = causal_mask(
                count,
                segment.start + begin,
                end - first_key,
                spec.window,
                q.dtype,
                q.device,
                first_key,
            )
            parts.append(
                masked_attention(
                    q[:, :, begin : begin + count],
                    key,
                    value,
                    mask,
                    spec,
                )[0].transpose(0, 1)
            )
        return parts[0] if len(parts) == 1 else torch.cat(parts)
