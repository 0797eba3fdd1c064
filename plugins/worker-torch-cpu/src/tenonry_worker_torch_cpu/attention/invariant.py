"""The backend of batch invariance: K/V in blocks only, and the location of each query's keys for kernels. Worker
process, CPU.

Layers with kernels attend through `step_keys`. Runs before that, to describe and check a model, attend as the reference
backend does, over the same blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.attention.base import STORAGE
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.attention.sdpa_plan import SdpaPlan
from tenonry_torch_base.invariant import StepKeys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, CachedLayer

GROUP_QUERIES = 8  # neighbours of one sequence that pass over its keys together


class InvariantPlan:
    """A step, planned on first use by kernels or by the reference. `reference` is the latter's plan."""

    __slots__ = ("_keys", "batch", "block_size", "reference")

    def __init__(self, batch: AttentionBatch, block_size: int) -> None:
        self.batch = batch
        self.block_size = block_size
        self.reference: SdpaPlan | None = None
        self._keys: StepKeys | None = None

    def keys(self, blocks: torch.Tensor) -> StepKeys:
        """Keys in the cache `blocks` of a layer."""
        if self._keys is None:
            self._keys = step_keys(self.batch, self.block_size, blocks)
        return self._keys._replace(blocks=blocks)


class InvariantBackend(SdpaBackend):
    """Batch-invariant backend, see the module. Selected by the setting `batch_invariant`, not by name."""

    name: ClassVar[str] = "invariant"
    features: ClassVar[frozenset[str]] = SdpaBackend.features - {STORAGE}

    def plan(self, batch: AttentionBatch) -> InvariantPlan:  # type: ignore[override] - its own
        return InvariantPlan(batch, self.block_size)

    def forward(
        self,
        layer: CachedLayer,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: InvariantPlan,  # type: ignore[override] - its own
        both: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if plan.reference is None:
            plan.reference = super().plan(plan.batch)
        return super().forward(layer, query, key, value, plan.reference, both)

    def step_keys(self, layer: CachedLayer, plan: InvariantPlan) -> StepKeys | None:
        both = layer.kv_cache[0].both
        return None if both is None else plan.keys(both)


def step_keys(batch: AttentionBatch, block_size: int, blocks: torch.Tensor) -> StepKeys:
    """Destination of a step's K/V, and keys visible to its queries."""
    counts = batch.num_tokens.astype(np.int64)
    ends = counts.cumsum()
    begins = ends - counts
    first = batch.start.astype(np.int64) - begins
    positions = np.repeat(first, counts) + np.arange(counts.sum())
    lines, group_begins, group_counts = _groups(begins, counts)
    width = -(-int(batch.seq_lens.max(initial=1)) // block_size)
    table = np.ascontiguousarray(batch.block_table[batch.row, :width], np.int32)
    return StepKeys(
        blocks,
        torch.from_numpy(batch.slot_mapping),
        torch.from_numpy(table),
        torch.from_numpy(positions),
        torch.from_numpy(group_begins),
        torch.from_numpy(group_counts),
        torch.from_numpy(lines),
    )


def _groups(
    begins: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Divide the `counts` queries of rows from `begins` on into groups of at most `GROUP_QUERIES`: returns row, first
    query, count.
    """
    if len(counts) == counts.sum():
        return np.arange(len(counts)), begins, counts
    per_row = -(-counts // GROUP_QUERIES)
    rows = np.repeat(np.arange(len(counts)), per_row)
    number = np.arange(len(rows)) - np.repeat(per_row.cumsum() - per_row, per_row)  # within a row
    done = number * GROUP_QUERIES
    some = np.minimum(counts[rows] - done, GROUP_QUERIES)
    return rows, begins[rows] + done, some
