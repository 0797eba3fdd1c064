"""The backend for the CPU: decoding rows keep their K/V contiguous in slabs, and nothing is gathered per step. If
kernels attend over blocks, there are no slabs. Worker process.

Prefill is the reference backend's, or a kernel's. Decoding in 16 bits uses batched matrix products with scores rounded
to 16 bits (as transformers' `eager` attention), which is several times faster on the CPU than its fused kernel is for
one query; in float32 the fused kernel is used.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

import torch
from torch.nn import functional

from tenonry_torch_base.attention.math import softmax_with_sinks
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.attention.sdpa_plan import SdpaPlan, block_index
from tenonry_torch_base.step_kernels import HeldKeys
from tenonry_worker_torch_cpu.attention.paged_plan import PagedPlan
from tenonry_worker_torch_cpu.attention.slab_plan import CpuPlan, SlabGroup, SlabPlanner
from tenonry_worker_torch_cpu.attention.slabs import Slabs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, CachedLayer, LayerCache, LayerSpec
    from tenonry_torch_base.paged_attention import ChunkKernel, Chunks, PagedKernel, PagedKeys

SLAB_SHARE = 2  # slabs are limited to this fraction of the KV cache: 1/2
MATRIX_WORK = 1 << 16  # elements of K above which batched products beat the fused kernel


class CpuBackend(SdpaBackend):
    """See the module. Models whose layers have different KV heads use gathered blocks throughout."""

    name: ClassVar[str] = "cpu"
    features: ClassVar[frozenset[str]] = SdpaBackend.features
    holds_rows: bool = True
    cache_sizes: tuple[int, ...] = (1, 4)  # without room for slabs, and with one for every row

    def __init__(
        self, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__(layers, dtype, device)
        self.slabs: Slabs | None = None
        self._planner: SlabPlanner | None = None
        self.number_of = {layer.name: number for number, layer in enumerate(self.layers)}
        self._paged: Mapping[str, PagedKernel] = {}
        self._chunked: Mapping[str, ChunkKernel] = {}

    @classmethod
    def refusal(
        cls, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device
    ) -> str | None:
        if device.type == "cpu":
            return None
        return f"it runs on the CPU, and the model is on {device}; use 'sdpa'"

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        self._make_slabs(num_blocks, block_size)
        return super().allocate(num_blocks, block_size)

    def adopt(self, other: SdpaBackend, caches: Sequence[LayerCache]) -> dict[str, LayerCache]:
        self._make_slabs(other.num_blocks, other.block_size)
        return super().adopt(other, caches)

    def decode_with(self, kernels: Mapping[str, PagedKernel]) -> None:
        """Use kernels to attend over the blocks of decoding rows, one for each layer by its name; {} restores the
        default. The cache must be reallocated.
        """
        self._paged = kernels
        self.cache_sizes = type(self).cache_sizes[:1] if kernels else type(self).cache_sizes

    def prefill_with(self, kernels: Mapping[str, ChunkKernel]) -> None:
        """Use kernels for rows with several queries, by layer name; only effective if `decode_with` has kernels."""
        self._chunked = kernels

    @property
    def splits_rows(self) -> bool:  # type: ignore[override] - where kernels attend over blocks
        return bool(self._paged)

    def _make_slabs(self, num_blocks: int, block_size: int) -> None:
        self.slabs = self._planner = None
        if self._paged:
            return
        first = self.layers[0]
        shapes = {(layer.num_kv_heads, layer.key_size, layer.value_size) for layer in self.layers}
        is_indexed = any(
            layer.indexed for layer in self.layers
        )  # a choice of keys is a mask over blocks
        if not is_indexed and shapes == {(first.num_kv_heads, first.key_size, first.key_size)}:
            token_bytes = sum(layer.kept_bytes(self.storage) for layer in self.layers)
            pool_bytes = num_blocks * block_size * token_bytes
            self.slabs = Slabs(
                len(self.layers),
                first.num_kv_heads,
                first.key_size,
                self.dtype,
                budget_bytes=pool_bytes // SLAB_SHARE // self.num_sharing,
            )
            index_of = partial(block_index, spec=first)
            windows = {layer.window for layer in self.layers}
            window = windows.pop() if len(windows) == 1 else 0
            self._planner = SlabPlanner(self.slabs, block_size, index_of, window)

    def release(self, rows: NDArray[np.int32]) -> None:
        if self.slabs is not None:
            self.slabs.release(rows.astype("int64"))

    def plan(self, batch: AttentionBatch) -> SdpaPlan:
        if self._planner is None and not self._paged:
            return super().plan(batch)
        self.clear_entered(batch)
        if self._planner is None:
            return PagedPlan(batch, self.block_size)
        return self._planner.plan(batch)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not isinstance(plan, CpuPlan) or not plan.slab_groups:
            return super().forward(layer, query, key, value, plan, both)
        key, value, both = self.write(layer.kv_cache[0], key, value, plan, both)
        spec = layer.spec
        number = self.number_of[spec.name]
        for group in plan.slab_groups:
            self._fill(group, layer.kv_cache[0], number, both)
        first = plan.slab_groups[0]
        if first.queries is None:  # the only group, with decoding rows alone
            return self._attend(layer, query, first, number)
        out = query.new_empty(plan.num_queries, spec.num_heads, spec.value_size)
        for group in plan.slab_groups:
            if group.queries is not None and len(group.queries):
                attended = self._attend(layer, query[group.queries], group, number)
                out.index_copy_(0, group.queries, attended)
        self.prefill(layer, query, key, value, plan, out)
        self.decode_gathered(layer, query, plan, out)
        return out

    def held_keys(self, layer: CachedLayer, plan: SdpaPlan) -> HeldKeys | None:
        group = plan.only_group if isinstance(plan, CpuPlan) else None
        both = layer.kv_cache[0].both
        if group is None or both is None or not self.storage.is_exact:
            return None
        return HeldKeys(
            group.placement.slab.tensors[self.number_of[layer.spec.name]],
            group.column,
            both,
            torch.from_numpy(plan.batch.slot_mapping),
            group.longest,
        )

    def paged_keys(self, layer: CachedLayer, plan: SdpaPlan) -> PagedKeys | None:
        both = layer.kv_cache[0].both
        if both is None or not isinstance(plan, PagedPlan) or not plan.is_decode_only:
            return None
        return plan.keys(both)

    def prompt_keys(self, layer: CachedLayer, plan: SdpaPlan) -> tuple[Chunks, PagedKeys] | None:
        """Return all rows of a step with prompts; None if kernels cannot attend for one of them."""
        both = layer.kv_cache[0].both
        if both is None or not isinstance(plan, PagedPlan):
            return None
        return plan.all_rows(both)

    def prefill(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        out: torch.Tensor,
    ) -> None:
        kernel = self._chunked.get(layer.spec.name)
        both = layer.kv_cache[0].both
        chunks = None
        if kernel is not None and both is not None and isinstance(plan, PagedPlan):
            chunks = plan.chunks(both)
        if kernel is None or chunks is None:
            super().prefill(layer, query, key, value, plan, out)
        else:
            kernel(query.contiguous(), *chunks, out)

    def _decode(self, layer: CachedLayer, query: torch.Tensor, plan: SdpaPlan) -> torch.Tensor:
        both = layer.kv_cache[0].both
        if both is None or not isinstance(plan, PagedPlan):
            return super()._decode(layer, query, plan)
        kernel = self._paged[layer.spec.name]
        return kernel(query.contiguous(), plan.keys(both))

    def _fill(self, group: SlabGroup, cache: LayerCache, number: int, both: torch.Tensor) -> None:
        """Copy all blocks of the rows that enter; then add this step's token of every row."""
        slab = group.placement.slab
        tensor = slab.tensors[number]  # [2, slots, num_kv_heads, capacity, size]
        size = tensor.shape[-1]
        for entry in group.entering:
            run = entry.line_tokens
            for half, index in zip(tensor, entry.index, strict=True):  # keys, values
                place = half[entry.slots].view(-1, run * size)
                self.storage.read(cache.both, index, run, size, out=place)
        new = both if group.tokens is None else both.index_select(0, group.tokens)
        tensor.view(-1, size).index_copy_(0, group.append, new.reshape(-1, size))

    def _attend(
        self, layer: CachedLayer, query: torch.Tensor, group: SlabGroup, number: int
    ) -> torch.Tensor:
        """`query` [Q, H, D] of the rows of a group → [Q, H, D]."""
        spec = layer.spec
        count = group.num_slots
        if group.slots is not None:
            by_slot = query.new_zeros(count, *query.shape[1:])
            query = by_slot.index_copy_(0, group.slots, query)
        held = group.placement.slab.tensors[number][:, :count]
        key, value = held.unbind()  # [slots, num_kv_heads, capacity, size]
        query = query.reshape(count, spec.num_kv_heads, spec.group_size, spec.key_size)
        if query.dtype == torch.float32 or key.numel() < MATRIX_WORK:
            shown = group.longest
            out = self._fused(
                layer, query, key.narrow(2, 0, shown), value.narrow(2, 0, shown), group
            )
        else:
            out = _products(spec, query, key, value, group.mask_for(spec), layer.sinks)
        out = out.reshape(count, spec.num_heads, spec.value_size)
        return out if group.slots is None else out.index_select(0, group.slots)

    def _fused(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        group: SlabGroup,
    ) -> torch.Tensor:
        spec = layer.spec
        is_plain = not (spec.softcap or spec.window or spec.chunk or spec.sinks)
        # A single row attends to all its keys, without a mask.
        if is_plain and len(query) == 1:
            return functional.scaled_dot_product_attention(query, key, value, scale=spec.scaling)
        mask = group.mask_for(spec)[:, None, :, : group.longest]
        return self.decode_attention(query, key, value, mask, layer)


def _products(
    spec: LayerSpec,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Two batched matrix products over the whole capacity: slices of a slab would be copied by oneDNN."""
    rows, heads, group, size = query.shape
    scaling = spec.scaling
    if query.dtype == torch.float16:  # unscaled scores may leave its range
        query = query * scaling
        scaling = 1.0
    batches = rows * heads
    queries = query.reshape(batches, group, size)
    keys = key.reshape(batches, -1, size)
    values = value.reshape(batches, -1, size)
    scores = torch.bmm(queries, keys.transpose(1, 2))
    scores = scores.view(rows, heads * group, -1)
    if spec.softcap:
        scores.mul_(scaling / spec.softcap)
        scores.tanh_()
        scores.mul_(spec.softcap)
        scores.add_(mask)
    else:
        scores = torch.add(mask, scores, alpha=scaling)
    weights = softmax_with_sinks(scores, None if sinks is None else sinks[:, None])
    weights = weights.reshape(batches, group, -1)
    out = torch.bmm(weights, values)
    return out.view(rows, heads, group, size)
