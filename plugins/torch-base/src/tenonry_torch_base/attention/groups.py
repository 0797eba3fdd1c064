"""Layers that share block tables: how they are grouped, and one backend per group over tensors that all groups share.

A group's layer i keeps its K/V in tensor i, so a block is one page of all tensors and belongs to one group at a time.
Worker process.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from tenonry_torch_base.attention.base import GROUPS, AttentionBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, CachedLayer, LayerCache, LayerSpec
    from tenonry_torch_base.attention.kv_storage import KVStorage
    from tenonry_torch_base.invariant import StepKeys
    from tenonry_torch_base.paged_attention import PagedKeys

MAX_GROUPS = 8
MAX_PADDING = 0.2  # of the bytes of a page, in groups that have fewer layers than the largest


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers with one block table. `window`: number of positions that all of them see; earlier blocks are released."""

    layers: tuple[LayerSpec, ...]
    window: int = 0


def layer_groups(
    specs: Sequence[LayerSpec], backend: type[AttentionBackend], *, by_window: bool
) -> list[LayerGroup]:
    """Groups of a model's layers, the first with the most layers; one group of all if they cannot share a pool.

    Layers with one window form groups of equal size, so that each can use a block. Without `by_window`, without
    `GROUPS` in the backend, or with K/V of different sizes, there is one group, in which no block is released.
    """
    whole = [LayerGroup(tuple(specs))]
    known = vars(backend).get("features", frozenset())
    shapes = {(spec.num_kv_heads, spec.key_size, spec.value_size, spec.indexed) for spec in specs}
    if not by_window or GROUPS not in known or len(shapes) != 1 or specs[0].indexed:
        return whole
    by_reach: dict[int, list[LayerSpec]] = {}
    for spec in specs:
        by_reach.setdefault(spec.window, []).append(spec)
    if set(by_reach) == {0}:
        return whole
    size = group_size([len(layers) for layers in by_reach.values()])
    if size is None:
        return whole
    return [
        LayerGroup(tuple(layers[begin : begin + size]), window)
        for window, layers in sorted(by_reach.items())
        for begin in range(0, len(layers), size)
    ]


def group_size(counts: Sequence[int]) -> int | None:
    """Maximum layers of a group, so that `counts[i]` layers of each kind form few groups with little padding."""
    for size in range(min(counts), 0, -1):
        groups = sum(-(-count // size) for count in counts)
        padding = 1 - sum(counts) / (groups * size)
        if groups <= MAX_GROUPS and padding <= MAX_PADDING:
            return size
    return None


class GroupedBackend(AttentionBackend):
    """A backend for each group of layers; a plan is the list of theirs."""

    name: ClassVar[str] = "groups"

    def __init__(self, parts: Sequence[AttentionBackend]) -> None:
        layers = [layer for part in parts for layer in part.layers]
        super().__init__(layers, parts[0].dtype, parts[0].device)
        self.parts = tuple(parts)
        self.num_groups = len(parts)
        self.cache_sizes = parts[0].cache_sizes
        self.number_of = {
            layer.name: number for number, part in enumerate(parts) for layer in part.layers
        }
        for part in parts:
            part.num_sharing = len(parts)

    @property
    def splits_rows(self) -> bool:  # type: ignore[override] - of these parts
        return all(part.splits_rows for part in self.parts)

    def keep_in(self, storage: KVStorage) -> None:
        super().keep_in(storage)
        for part in self.parts:
            part.keep_in(storage)

    def block_sizes(self) -> tuple[int, ...]:  # type: ignore[override] - those of these parts
        return self.parts[0].block_sizes()

    def allocate(self, num_blocks: int, block_size: int) -> dict[str, LayerCache]:
        first, *others = self.parts
        caches = first.allocate(num_blocks, block_size)
        shared = [caches[layer.name] for layer in first.layers]
        for part in others:
            caches |= part.adopt(first, shared)
        return caches

    def plan(self, batch: AttentionBatch) -> list[Any]:
        plans = []
        for number, part in enumerate(self.parts):
            table = batch.groups[number]
            full = batch.full_plan
            of_group = dataclasses.replace(
                batch,
                block_table=table.block_table,
                slot_mapping=table.slot_mapping,
                put=_labelled(batch.put, number),
                full_plan=None if full is None else full[number],
            )
            plans.append(part.plan(of_group))
        return plans

    def release(self, rows: NDArray[np.int32]) -> None:
        for part in self.parts:
            part.release(rows)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: list[Any],
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        number = self.number_of[layer.spec.name]
        part = self.parts[number]
        return part.forward(layer, query, key, value, plan[number], both)

    def paged_keys(self, layer: CachedLayer, plan: list[Any]) -> PagedKeys | None:
        number = self.number_of[layer.spec.name]
        return self.parts[number].paged_keys(layer, plan[number])

    def step_keys(self, layer: CachedLayer, plan: list[Any]) -> StepKeys | None:
        number = self.number_of[layer.spec.name]
        return self.parts[number].step_keys(layer, plan[number])


def _labelled(
    put: Callable[[str, NDArray[Any]], torch.Tensor], number: int
) -> Callable[[str, NDArray[Any]], torch.Tensor]:
    """Labels are unique within a step, over all groups."""
    return lambda label, array: put(f"group_{number}_{label}", array)
