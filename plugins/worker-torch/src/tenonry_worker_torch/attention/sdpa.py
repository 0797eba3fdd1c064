"""The reference backend: blocks gathered by index, `scaled_dot_product_attention` for everything. Worker process, any
device.

Layout: K and V of a layer are [num_kv_heads, num_slots, head_size], one behind the other where their heads have one
size, so that one `index_select` over (head, block) gives each row's keys and values contiguous per head. A decode step
has no Python loop over sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.nn import functional

from tenonry_worker_torch.attention.base import AttentionBackend, AttentionBatch, LayerCache, LayerSpec
from tenonry_worker_torch.attention.math import causal_mask, masked_attention, softcapped_attention
from tenonry_worker_torch.attention.segments import Segment, length_groups, prefill_segments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry_worker_torch.attention.layer import AttentionLayer

MAX_GATHER_BYTES = 128 << 20  # K and V copied together for one group of decode rows
MAX_MASK_ELEMENTS = 1 << 24  # of one chunk of prefill queries


class DecodeGroup:
    """Rows [begin, end) of the decode order: block `index` (see `gather`) and additive `mask` [R, 1, 1, L]."""

    __slots__ = ("begin", "end", "index", "mask")

    def __init__(self, begin: int, end: int, index: torch.Tensor, mask: torch.Tensor) -> None:
        self.begin, self.end, self.index, self.mask = begin, end, index, mask


class SdpaPlan:
    """One step: where K/V go, which tokens decode (None: all, in order), and the segments that prefill.

    `groups` and `context` are filled by the first layer that needs them and shared by the others that are alike.
    """

    sorts: ClassVar[bool] = True  # decoding rows of like length next to each other
    __slots__ = ("batch", "context", "decode_order", "decode_tokens", "groups", "num_queries", "prefill", "slots")

    def __init__(self, batch: AttentionBatch) -> None:
        self.batch = batch
        self.slots = batch.put("slot_mapping", batch.slot_mapping)
        self.num_queries = int(batch.num_tokens.sum())
        self.prefill: list[Segment] = []
        self.decode_tokens: torch.Tensor | None = None
        self.decode_order = np.arange(len(batch.row))
        self.groups: dict[tuple[int, int], list[DecodeGroup]] = {}
        self.context: dict[tuple[int, int], torch.Tensor] = {}
        if self.num_queries != len(batch.row):
            self.prefill = prefill_segments(batch.row, batch.num_tokens, batch.start)
            self.decode_order = np.flatnonzero(batch.num_tokens == 1)
        if self.sorts and len(self.decode_order) > 1:
            self.decode_order = longest_first(self.decode_order, batch.seq_lens)
        if self.prefill or not np.array_equal(self.decode_order, np.arange(len(batch.row))):
            tokens = (np.cumsum(batch.num_tokens) - batch.num_tokens)[self.decode_order]
            self.decode_tokens = batch.put("decode_tokens", tokens.astype(np.int64))


def longest_first(order: NDArray[np.int64], seq_lens: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows `order`, sorted where lengths differ enough to matter; rows that decode in step stay in order."""
    lengths = seq_lens[order]
    if len(order) and 2 * int(lengths.min()) < int(lengths.max()):
        return order[np.argsort(-lengths, kind="stable")]
    return order


class SdpaBackend(AttentionBackend):
    """See the module. Supports every head size, data type, window and soft cap."""

    name: ClassVar[str] = "sdpa"

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        self.num_blocks, self.block_size = num_blocks, block_size
        return {layer.name: self._allocate_layer(layer, num_blocks * block_size) for layer in self.layers}

    def _allocate_layer(self, layer: LayerSpec, slots: int) -> LayerCache:
        if layer.key_size == layer.value_size:
            shape = (2 * layer.num_kv_heads, slots, layer.key_size)
            both = torch.zeros(shape, dtype=self.dtype, device=self.device)
            return LayerCache(*both.chunk(2), both)
        key, value = (
            torch.zeros(layer.num_kv_heads, slots, size, dtype=self.dtype, device=self.device)
            for size in (layer.key_size, layer.value_size)
        )
        return LayerCache(key, value)

    def plan(self, batch: AttentionBatch) -> SdpaPlan:
        return SdpaPlan(batch)

    def scrub(self, row: int, blocks: NDArray[np.int32], caches: Sequence[LayerCache]) -> None:
        index = torch.from_numpy(blocks.astype(np.int64)).to(self.device)
        for cache in caches:
            for tensor in (cache.key, cache.value):
                tensor.view(tensor.shape[0], self.num_blocks, -1).index_fill_(1, index, 0.0)

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.write(layer.kv_cache[0], key, value, plan, both)
        if not plan.num_queries:  # a pruned last layer of a step in which no row samples
            return query.new_empty(0, layer.spec.num_heads, layer.spec.value_size)
        if plan.decode_tokens is None:
            return self._decode(layer, query, plan)
        out = query.new_empty(plan.num_queries, layer.spec.num_heads, layer.spec.value_size)
        self.prefill(layer, query, key, value, plan, out)
        self.decode_gathered(layer, query, plan, out)
        return out

    def write(
        self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, plan: SdpaPlan, both: torch.Tensor | None
    ) -> torch.Tensor | None:
        """All K/V of the step into their slots; returns them as one tensor [T, 2 × heads, size] where sizes allow."""
        if cache.both is None:
            cache.key.index_copy_(1, plan.slots, key.transpose(0, 1))
            cache.value.index_copy_(1, plan.slots, value.transpose(0, 1))
            return None
        if both is None:
            both = torch.cat((key, value), 1)
        cache.both.index_copy_(1, plan.slots, both.transpose(0, 1))
        return both

    # ------------------------------------------------------------------ decode: one query per row, rows padded together

    def decode_gathered(self, layer: AttentionLayer, query: torch.Tensor, plan: SdpaPlan, out: torch.Tensor) -> None:
        """The decoding rows of a mixed step, into their places in `out`."""
        if plan.decode_tokens is not None and len(plan.decode_order):
            out.index_copy_(0, plan.decode_tokens, self._decode(layer, query[plan.decode_tokens], plan))

    def _decode(self, layer: AttentionLayer, query: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        """`query` [R, H, D] in decode order → [R, H, D]."""
        groups = self._decode_groups(layer.spec, plan)
        parts = [self._decode_group(layer, query[group.begin : group.end], group) for group in groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _decode_group(self, layer: AttentionLayer, query: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
        spec, rows = layer.spec, group.end - group.begin
        key, value = self.gather(layer.kv_cache[0], group.index, rows, spec)
        grouped = query.reshape(rows, spec.num_kv_heads, spec.group_size, spec.key_size)
        return self.decode_attention(grouped, key, value, group.mask, spec).reshape(
            rows, spec.num_heads, spec.value_size
        )

    def decode_attention(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, spec: LayerSpec
    ) -> torch.Tensor:
        """`query` [R, K, group, D], `key`, `value` [R, K, L, D], `mask` [R, 1, 1, L] → [R, K, group, D].

        The query heads of one KV head are its query rows, so keys are neither repeated nor read twice.
        """
        if spec.softcap:
            return softcapped_attention(query, key, value, mask, spec)
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=spec.scaling)

    def gather(
        self, cache: LayerCache, index: torch.Tensor, rows: int, spec: LayerSpec
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [R, K, L, size] of blocks by (key or value, row, head, block) index."""
        heads, blocks = spec.num_kv_heads, self.num_blocks
        if cache.both is not None:
            found = cache.both.view(2 * heads * blocks, -1).index_select(0, index)
            key, value = found.view(2, rows, heads, -1, spec.key_size).unbind()
            return key, value
        half = index.shape[0] // 2
        return (
            cache.key.view(heads * blocks, -1).index_select(0, index[:half]).view(rows, heads, -1, spec.key_size),
            cache.value.view(heads * blocks, -1).index_select(0, index[:half]).view(rows, heads, -1, spec.value_size),
        )

    def _decode_groups(self, spec: LayerSpec, plan: SdpaPlan) -> list[DecodeGroup]:
        """Groups for one (window, heads); made once per step and shared by the layers that are alike."""
        wanted = (spec.window, spec.num_kv_heads)
        if wanted not in plan.groups:
            batch, order = plan.batch, plan.decode_order
            lengths = batch.seq_lens[order].astype(np.int64)
            first = np.maximum(lengths - spec.window, 0) // self.block_size if spec.window else np.zeros_like(lengths)
            shown = lengths - first * self.block_size
            budget = MAX_GATHER_BYTES // spec.bytes_per_token(self.dtype)
            plan.groups[wanted] = [
                self._make_group(batch, spec, order, lengths, first, begin, end)
                for begin, end in length_groups(shown, budget)
            ]
        return plan.groups[wanted]

    def _make_group(
        self,
        batch: AttentionBatch,
        spec: LayerSpec,
        order: NDArray[np.int64],
        lengths: NDArray[np.int64],
        first: NDArray[np.int64],
        begin: int,
        end: int,
    ) -> DecodeGroup:
        lengths, first = lengths[begin:end, None], first[begin:end, None]
        num_blocks = int((-(-lengths // self.block_size) - first).max())
        wanted = first + np.arange(num_blocks)
        table = batch.block_table[batch.row[order[begin:end]]]
        # Beyond its last block a row reads its own first one again: masked, and never another request's NaN.
        inside = np.minimum(wanted, table.shape[1] - 1)
        blocks = np.where(wanted * self.block_size < lengths, np.take_along_axis(table, inside, 1), table[:, :1])
        heads = (np.arange(2 * spec.num_kv_heads) * self.num_blocks).reshape(2, 1, spec.num_kv_heads, 1)
        index = blocks[:, None, :] + heads  # [key or value, row, head, block]
        positions = first * self.block_size + np.arange(num_blocks * self.block_size)
        hidden = positions >= lengths
        if spec.window:
            hidden |= positions < lengths - spec.window
        mask = np.where(hidden, np.float32("-inf"), np.float32(0))[:, None, None, :]
        label = f"decode_{spec.window}_{spec.num_kv_heads}_{begin}"
        return DecodeGroup(
            begin, end,
            batch.put(f"{label}_index", index.reshape(-1)),
            batch.put(f"{label}_mask", mask).to(self.dtype),
        )  # fmt: skip

    # ------------------------------------------------------------------ prefill: several queries per row

    def prefill(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        out: torch.Tensor,
    ) -> None:
        """Every segment of the step, into its place in `out`."""
        for segment in plan.prefill:
            span = slice(segment.token, segment.token + segment.count * segment.length)
            out[span] = self._prefill(layer.spec, layer.kv_cache[0], segment, plan, query[span], key[span], value[span])

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
            return self._prefill_with_context(spec, cache, segment, plan, query)
        shape = (segment.count, segment.length, -1)
        # The CPU's kernel is a fifth faster on heads that lie one behind the other.
        q, k, v = (t.reshape(*shape, t.shape[-1]).transpose(1, 2).contiguous() for t in (query, key, value))
        plain = not spec.softcap and not (spec.window and segment.length > spec.window)
        if plain:
            out = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, scale=spec.scaling, enable_gqa=spec.group_size > 1
            )
        else:
            mask = causal_mask(segment.length, 0, segment.length, spec.window, q.dtype, q.device)
            out = masked_attention(q, k, v, mask, spec)
        return out.transpose(1, 2).flatten(0, 1)

    def _prefill_with_context(
        self, spec: LayerSpec, cache: LayerCache, segment: Segment, plan: SdpaPlan, query: torch.Tensor
    ) -> torch.Tensor:
        """One chunk of a prompt whose earlier tokens are in the cache; queries go in pieces that bound the mask."""
        end = segment.start + segment.length
        first_block = max(0, segment.start + 1 - spec.window) // self.block_size if spec.window else 0
        blocks = self._context_blocks(plan, segment, first_block, -(-end // self.block_size))
        shape = (spec.num_kv_heads, self.num_blocks, self.block_size, -1)
        first_key = first_block * self.block_size
        key, value = (
            kept.view(*shape).index_select(1, blocks).flatten(1, 2)[None, :, : end - first_key]
            for kept in (cache.key, cache.value)
        )
        q = query.transpose(0, 1)[None]
        piece = max(1, MAX_MASK_ELEMENTS // (end - first_key))
        parts = []
        for begin in range(0, segment.length, piece):
            count = min(piece, segment.length - begin)
            mask = causal_mask(count, segment.start + begin, end - first_key, spec.window, q.dtype, q.device, first_key)
            parts.append(masked_attention(q[:, :, begin : begin + count], key, value, mask, spec)[0].transpose(0, 1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @staticmethod
    def _context_blocks(plan: SdpaPlan, segment: Segment, begin: int, end: int) -> torch.Tensor:
        wanted = (segment.token, begin)
        if wanted not in plan.context:
            table = plan.batch.block_table[segment.row, begin:end].astype(np.int64)
            plan.context[wanted] = plan.batch.put(f"context_{segment.token}_{begin}", table)
        return plan.context[wanted]
