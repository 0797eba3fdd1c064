"""The backend for the CPU: decoding rows keep their K/V contiguous in slabs, and nothing is gathered per step. Worker
process.

Prefill is the reference backend's. Decoding in 16 bits uses batched matrix products with scores rounded to 16 bits
(what transformers' `eager` attention does), which is several times faster on the CPU than its fused kernel is for one
query; in float32 the fused kernel is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
import torch.nn.functional as F

from tenonry_worker_torch.attention.sdpa import SdpaBackend, SdpaPlan
from tenonry_worker_torch.attention.slabs import Placement, Slabs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry_worker_torch.attention.base import AttentionBatch, LayerCache, LayerSpec
    from tenonry_worker_torch.attention.layer import AttentionLayer

SLAB_SHARE = 2  # slabs may take the size of the KV cache over this
MATRIX_WORK = 1 << 16  # elements of K above which batched products beat the fused kernel


class SlabGroup:
    """Decoding rows of one slab in one step.

    `append` i64[rows · 2 · heads]: where their new K/V go in the flattened slab. `tokens` i64[rows]: which flattened
    tokens those are (None: all, in order). `slots` i64[Q] and `queries` i64[Q]: the slot and the place among the step's
    queries of each row that attends (None: slot i is query i). `mask` [slots, 1, capacity], `longest`: keys in use.
    """

    __slots__ = (
        "append", "entering", "last", "longest", "mask", "num_slots", "placement", "queries", "slots", "tokens",
    )  # fmt: skip

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.entering: tuple[torch.Tensor, torch.Tensor] | None = None
        self.append = self.last = torch.empty(0, dtype=torch.long)
        self.tokens: torch.Tensor | None = None
        self.queries: torch.Tensor | None = None
        self.slots: torch.Tensor | None = None
        self.mask = torch.empty(0)
        self.longest = self.num_slots = 0


class CpuPlan(SdpaPlan):
    """A step: what the reference plans for prefill and for rows without a slab, and the slab groups."""

    __slots__ = ("slab_groups", "slabless_queries")

    def __init__(self, batch: AttentionBatch) -> None:
        super().__init__(batch)
        self.slab_groups: list[SlabGroup] = []
        self.slabless_queries: torch.Tensor | None = None


class Steady:
    """The last step's decoding rows: if the same rows gain one token each, its plan is moved on instead of made anew."""

    __slots__ = ("generation", "lengths", "plan", "rows")

    def __init__(self, batch: AttentionBatch, plan: CpuPlan) -> None:
        self.rows, self.generation, self.lengths = batch.row, batch.generation, batch.seq_lens
        self.plan = plan

    def continues(self, batch: AttentionBatch) -> bool:
        """Same rows, same requests, one more token each."""
        return (
            len(self.rows) == len(batch.row)
            and bool((self.rows == batch.row).all())
            and bool((self.generation == batch.generation).all())
            and bool((self.lengths + 1 == batch.seq_lens).all())
            and bool((batch.num_tokens == 1).all())
        )


class CpuBackend(SdpaBackend):
    """See the module. Models whose layers have different KV heads use gathered blocks throughout."""

    name: ClassVar[str] = "cpu"

    def __init__(self, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(layers, dtype, device)
        self.slabs: Slabs | None = None
        self._steady: Steady | None = None
        self._number = {layer.name: number for number, layer in enumerate(self.layers)}

    @classmethod
    def refusal(cls, layers: Sequence[LayerSpec], dtype: torch.dtype, device: torch.device) -> str | None:
        return None if device.type == "cpu" else f"it runs on the CPU, and the model is on {device}; use 'sdpa'"

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        first = self.layers[0]
        alike = all(
            (layer.num_kv_heads, layer.key_size, layer.value_size)
            == (first.num_kv_heads, first.key_size, first.key_size)
            for layer in self.layers
        )
        pool_bytes = num_blocks * block_size * sum(layer.bytes_per_token(self.dtype) for layer in self.layers)
        self._steady = None
        self.slabs = (
            Slabs(len(self.layers), first.num_kv_heads, first.key_size, self.dtype, pool_bytes // SLAB_SHARE)
            if alike
            else None
        )
        return super().allocate(num_blocks, block_size)

    def release(self, rows: NDArray[np.int32]) -> None:
        if self.slabs is not None:
            self.slabs.release(rows.astype(np.int64))

    def scrub(self, row: int, blocks: NDArray[np.int32], caches: Sequence[LayerCache]) -> None:
        super().scrub(row, blocks, caches)
        if self.slabs is not None:
            self.slabs.zero(row)

    # ------------------------------------------------------------------ once per step

    def plan(self, batch: AttentionBatch) -> CpuPlan:
        if self._steady is not None and self._steady.continues(batch):
            return self._move_on(self._steady, batch)
        self._steady = None
        plan = CpuPlan(batch)
        if self.slabs is None or not len(plan.decode_order):
            return plan
        if batch.full_plan is not None:
            self._follow(plan, batch.full_plan)
            return plan
        order = plan.decode_order
        placed, homeless = self.slabs.place(
            batch.row[order].astype(np.int64), batch.generation[order], batch.seq_lens[order].astype(np.int64)
        )
        plan.slab_groups = [self._group(plan, order[which], placement) for which, placement in placed]
        self._keep_order(plan, order[np.sort(homeless)])
        if not plan.prefill and not len(homeless):
            self._steady = Steady(batch, plan)
        return plan

    def _move_on(self, steady: Steady, batch: AttentionBatch) -> CpuPlan:
        """The same rows, one token further: new slots in the blocks, the next column of each slab."""
        plan = steady.plan
        assert self.slabs is not None
        if any(group.longest == group.placement.slab.capacity for group in plan.slab_groups):
            self._steady = None
            return self.plan(batch)
        plan.slots = batch.put("slot_mapping", batch.slot_mapping)
        plan.batch, steady.lengths = batch, batch.seq_lens
        plan.groups.clear()
        for group in plan.slab_groups:
            group.entering = None
            group.longest += 1
            group.append += 1
            group.last += 1
            group.mask.view(-1)[group.last] = 0
            self.slabs.advance(group.placement.rows)
        return plan

    def _group(self, plan: CpuPlan, places: NDArray[np.int64], placement: Placement) -> SlabGroup:
        """`places`: which rows of the batch they are."""
        batch, slab, slots = plan.batch, placement.slab, placement.slots
        group, heads = SlabGroup(placement), self.layers[0].num_kv_heads
        lengths = batch.seq_lens[places].astype(np.int64)
        group.longest, group.num_slots = int(lengths.max()), int(slots.max()) + 1
        line = slots[:, None, None] * heads + np.arange(heads)  # [row, key or value, head]
        line = line + (np.arange(2) * len(slab.owner) * heads)[:, None]
        group.append = torch.from_numpy((line * slab.capacity + (lengths - 1)[:, None, None]).reshape(-1))
        group.last = torch.from_numpy(slots * slab.capacity + lengths - 1)
        known = np.zeros(group.num_slots, np.int64)
        known[slots] = lengths
        hidden = torch.from_numpy(np.arange(slab.capacity) >= known[:, None])
        group.mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, float("-inf"))[:, None]
        first_token = np.cumsum(batch.num_tokens) - batch.num_tokens
        if not _is_range(places, len(batch.row)) or plan.prefill:
            group.tokens = group.queries = torch.from_numpy(first_token[places].astype(np.int64))
        if group.queries is not None or not _is_range(slots, group.num_slots):
            group.slots = torch.from_numpy(slots)
            group.queries = torch.from_numpy(first_token[places].astype(np.int64))
        if placement.entering.any():
            group.entering = self._entering(plan, places[placement.entering], slots[placement.entering], slab.capacity)
        return group

    def _entering(
        self, plan: CpuPlan, places: NDArray[np.int64], slots: NDArray[np.int64], capacity: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Slots, and the block index (key or value, row, head, block) of the rows that move in."""
        batch = plan.batch
        count = min(-(-capacity // self.block_size), batch.block_table.shape[1])
        used = -(-batch.seq_lens[places] // self.block_size)[:, None]
        count = min(count, int(used.max()))
        table = batch.block_table[batch.row[places], :count]
        blocks = np.where(np.arange(count) < used, table, table[:, :1])
        heads = self.layers[0].num_kv_heads
        offsets = (np.arange(2 * heads) * self.num_blocks).reshape(2, 1, heads, 1)
        return torch.from_numpy(slots), torch.from_numpy((blocks[:, None, :] + offsets).reshape(-1))

    def _keep_order(self, plan: CpuPlan, order: NDArray[np.int64]) -> None:
        """Leave only rows without a slab to the gathering path."""
        if not plan.slab_groups:
            return
        plan.decode_order = order
        first_token = np.cumsum(plan.batch.num_tokens) - plan.batch.num_tokens
        plan.decode_tokens = torch.from_numpy(first_token[order].astype(np.int64))

    def _follow(self, plan: CpuPlan, full: CpuPlan) -> None:
        """A pruned last layer: rows in slabs stay there (and gain their token), the others are gathered."""
        in_slab = np.zeros(len(plan.batch.row), np.bool_)
        query_of = np.full(len(plan.batch.block_table), -1)
        query_of[plan.batch.row] = np.arange(len(plan.batch.row))
        for group in full.slab_groups:
            twin = SlabGroup(group.placement)
            twin.entering, twin.append, twin.tokens = group.entering, group.append, group.tokens
            twin.mask, twin.longest, twin.num_slots = group.mask, group.longest, group.num_slots
            rows, slots = group.placement.rows, group.placement.slots
            asked = query_of[rows] >= 0
            queries = query_of[rows[asked]]
            in_slab[queries] = True
            twin.queries, twin.slots = torch.from_numpy(queries), torch.from_numpy(slots[asked])
            plan.slab_groups.append(twin)
        self._keep_order(plan, plan.decode_order[~in_slab[plan.decode_order]])

    # ------------------------------------------------------------------ once per layer

    def forward(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: SdpaPlan,
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        assert isinstance(plan, CpuPlan)
        if not plan.slab_groups:
            return super().forward(layer, query, key, value, plan, both)
        if both is None:
            both = torch.cat((key, value), 1)
        cache = layer.kv_cache[0]
        assert cache.both is not None
        cache.both.index_copy_(1, plan.slots, both.transpose(0, 1))
        number = self._number[layer.spec.name]
        for group in plan.slab_groups:
            self._fill(group, cache, number, both)
        first = plan.slab_groups[0]
        if first.queries is None and len(plan.slab_groups) == 1:
            return self._attend(layer.spec, query, first, number)
        return self._scattered(layer, query, key, value, plan, number)

    def _scattered(
        self,
        layer: AttentionLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: CpuPlan,
        number: int,
    ) -> torch.Tensor:
        """Slab groups, segments of prefill and gathered rows, each put back in its place."""
        out = query.new_empty(plan.num_queries, layer.spec.num_heads, layer.spec.value_size)
        for group in plan.slab_groups:
            assert group.queries is not None
            if len(group.queries):
                out.index_copy_(0, group.queries, self._attend(layer.spec, query[group.queries], group, number))
        self._prefill_all(layer, query, key, value, plan, out)
        if len(plan.decode_order):
            assert plan.decode_tokens is not None
            out.index_copy_(0, plan.decode_tokens, super()._decode(layer, query[plan.decode_tokens], plan))
        return out

    def _fill(self, group: SlabGroup, cache: LayerCache, number: int, both: torch.Tensor) -> None:
        """Rows that enter bring all their blocks; then every row gains this step's token."""
        slab = group.placement.slab
        tensor = slab.tensors[number]
        if group.entering is not None:
            slots, index = group.entering
            heads, size = self.layers[0].num_kv_heads, self.layers[0].key_size
            assert cache.both is not None
            found = cache.both.view(2 * heads * self.num_blocks, -1).index_select(0, index)
            found = found.view(2, len(slots), heads, -1, size)
            width = min(found.shape[3], slab.capacity)
            tensor[:, :, :, :width].index_copy_(1, slots, found[:, :, :, :width])
        new = both if group.tokens is None else both.index_select(0, group.tokens)
        tensor.view(-1, tensor.shape[-1]).index_copy_(0, group.append, new.reshape(-1, tensor.shape[-1]))

    def _attend(self, spec: LayerSpec, query: torch.Tensor, group: SlabGroup, number: int) -> torch.Tensor:
        """`query` [Q, H, D] of the rows of a group → [Q, H, D]."""
        slab, count = group.placement.slab, group.num_slots
        if group.slots is not None:
            query = query.new_zeros(count, *query.shape[1:]).index_copy_(0, group.slots, query)
        key, value = slab.tensors[number][:, :count].unbind()
        mask = group.mask if not spec.window else self._windowed(group, spec.window)
        query = query.reshape(count, spec.num_kv_heads, spec.group_size, spec.key_size)
        if query.dtype == torch.float32 or key.numel() < MATRIX_WORK:
            out = self._fused(spec, query, key, value, mask, group.longest)
        else:
            out = self._products(spec, query, key, value, mask)
        out = out.reshape(count, spec.num_heads, spec.value_size)
        return out if group.slots is None else out.index_select(0, group.slots)

    def _fused(
        self,
        spec: LayerSpec,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor,
        longest: int,
    ) -> torch.Tensor:
        key, value, mask = key[:, :, :longest], value[:, :, :longest], mask[:, None, :, :longest]
        if len(query) == 1 and not spec.softcap and not spec.window:
            return F.scaled_dot_product_attention(query, key, value, scale=spec.scaling)
        return self.decode_attention(query, key, value, mask, spec)

    def _products(
        self, spec: LayerSpec, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Two batched matrix products over the whole capacity: slices of a slab would be copied by oneDNN."""
        rows, heads, group, size = query.shape
        keys, values = key.reshape(rows * heads, -1, size), value.reshape(rows * heads, -1, size)
        scores = torch.bmm(query.reshape(rows * heads, group, size), keys.transpose(1, 2))
        scores = scores.view(rows, heads * group, -1)
        if spec.softcap:
            scores = scores.mul_(spec.scaling / spec.softcap).tanh_().mul_(spec.softcap).add_(mask)
        else:
            scores = torch.add(mask, scores, alpha=spec.scaling)
        weights = torch.softmax(scores, -1).view(rows * heads, group, -1)
        return torch.bmm(weights, values).view(rows, heads, group, size)

    def _windowed(self, group: SlabGroup, window: int) -> torch.Tensor:
        """The group's mask with everything before each row's window hidden as well."""
        known = (group.mask == 0).sum(-1, keepdim=True)
        return group.mask.masked_fill(torch.arange(group.mask.shape[-1]) < known - window, float("-inf"))


def _is_range(numbers: NDArray[np.int64], count: int) -> bool:
    """Whether they are 0, 1, …, count − 1."""
    return len(numbers) == count and bool((numbers == np.arange(count)).all())
