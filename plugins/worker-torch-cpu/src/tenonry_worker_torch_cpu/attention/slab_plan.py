"""Per-step plan of the CPU backend: slabs of rows, places of new tokens, masks. Worker process.

In steady decoding, where the same rows gain one token each, the last step's plan is advanced by one column.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import torch

from tenonry_torch_base.attention.sdpa_plan import SdpaPlan, longest_first

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, LayerSpec
    from tenonry_worker_torch_cpu.attention.slabs import Placement, Slabs

HIDDEN = float("-inf")


class Entry(NamedTuple):
    """Rows that move into neighbouring `slots` of a slab, and the lines that overwrite all contents of other rows,
    which may be NaN.

    `index` i64[2, lines]: for keys and for values, the lines of the cache in the order in which they fill the slots. A
    line is `line_tokens` tokens of one head: a divisor of both a block and a slot.
    """

    slots: slice
    index: torch.Tensor
    line_tokens: int


class SlabGroup:
    """Decoding rows of one slab in one step.

    `append` i64[rows · 2 · heads]: places of their new K/V in the flattened slab; `tokens` i64[rows]: their indices in
    the flattened batch (None: all, in order). `queries` i64[Q] and `slots` i64[Q]: the place among the step's queries
    and the slot of each row that attends (None: query i is slot i). `mask` [slots, 1, capacity] hides columns beyond a
    row's tokens, `column` i64[rows] is its last one, flattened; `longest` keys are in use. `entering`: the rows that
    move in.
    """

    __slots__ = (
        "append",
        "column",
        "entering",
        "longest",
        "mask",
        "num_slots",
        "placement",
        "queries",
        "slots",
        "tokens",
        "windowed",
    )

    def __init__(
        self, placement: Placement, append: torch.Tensor, mask: torch.Tensor, column: torch.Tensor
    ) -> None:
        self.placement = placement
        self.append = append
        self.mask = mask
        self.column = column
        self.longest = 0
        self.num_slots = mask.shape[0]
        self.entering: Sequence[Entry] = ()
        self.tokens: torch.Tensor | None = None
        self.queries: torch.Tensor | None = None
        self.slots: torch.Tensor | None = None
        self.windowed: dict[tuple[int, int], torch.Tensor] = {}

    def mask_for(self, spec: LayerSpec) -> torch.Tensor:
        """The mask, and beyond it everything before each row's window or chunk."""
        reach = (spec.window, spec.chunk)
        if reach == (0, 0):
            return self.mask
        if reach not in self.windowed:
            positions = torch.arange(self.mask.shape[-1])
            known = (self.mask == 0).sum(-1, keepdim=True)
            is_before = positions < torch.from_numpy(spec.first_seen(known.numpy()))
            self.windowed[reach] = self.mask.masked_fill(is_before, HIDDEN)
        return self.windowed[reach]

    def move_on(self) -> None:
        """Every row has one token more."""
        self.entering = ()
        self.windowed.clear()
        self.longest += 1
        self.append += 1
        self.column += 1
        self.mask.view(-1)[self.column] = 0

    def for_queries(self, queries: NDArray[np.int64], slots: NDArray[np.int64]) -> SlabGroup:
        """The same rows and writes, with only some of the rows attending."""
        narrowed = SlabGroup(self.placement, self.append, self.mask, self.column)
        narrowed.longest = self.longest
        narrowed.entering = self.entering
        narrowed.tokens = self.tokens
        narrowed.windowed = self.windowed
        narrowed.queries = torch.from_numpy(queries)
        narrowed.slots = torch.from_numpy(slots)
        return narrowed


class CpuPlan(SdpaPlan):
    """A step: the reference's plan for prefill and for rows without a slab, and the slab groups."""

    sorts: ClassVar[bool] = False  # rows in slabs are best left where they are
    __slots__ = ("slab_groups",)

    def __init__(self, batch: AttentionBatch, block_size: int) -> None:
        super().__init__(batch, block_size)
        self.slab_groups: list[SlabGroup] = []

    @property
    def only_group(self) -> SlabGroup | None:
        """Return the group of all tokens, in order, in a step that copies no row into a slab; None otherwise."""
        if len(self.slab_groups) != 1:
            return None
        group = self.slab_groups[0]
        is_whole = group.tokens is None and len(group.column) == self.num_queries
        return group if is_whole and not group.entering else None

    def leave_to_gathering(self, order: NDArray[np.int64]) -> None:
        """Only the rows `order` are decoded from gathered blocks."""
        self.decode_order = longest_first(order, self.batch.seq_lens)
        tokens = first_tokens(self.batch)[self.decode_order]
        self.decode_tokens = torch.from_numpy(tokens)


class SlabPlanner:
    """Makes the plans of one model. `block_index` is the backend's, for the layers of this model.

    `window`: number of positions that all layers see, and from which on rows are held in slabs; 0: they see all.
    """

    def __init__(
        self,
        slabs: Slabs,
        block_size: int,
        block_index: Callable[[NDArray[Any]], NDArray[np.int64]],
        window: int = 0,
    ) -> None:
        self.window = window
        self.slabs = slabs
        self.block_size = block_size
        self._block_index = block_index
        self._steady: CpuPlan | None = None

    def plan(self, batch: AttentionBatch) -> CpuPlan:
        """The plan of one step, or of a pruned last layer."""
        if self._steady is not None and _continues(self._steady, batch):
            return self._move_on(self._steady, batch)
        self._steady = None
        plan = CpuPlan(batch, self.block_size)
        if batch.full_plan is not None:
            _follow(plan, batch.full_plan)
        elif len(plan.decode_order):
            self._place(plan)
        return plan

    def _place(self, plan: CpuPlan) -> None:
        batch = plan.batch
        order = plan.decode_order
        lengths = batch.seq_lens[order].astype(np.int64)
        first = None
        if self.window:
            seen = np.maximum(lengths - self.window, 0)
            first = seen // self.block_size * self.block_size
        placed, unplaced = self.slabs.place(
            batch.row[order].astype(np.int64), batch.generation[order], lengths, first
        )
        plan.slab_groups = [
            self._group(plan, order[which], placement) for which, placement in placed
        ]
        plan.leave_to_gathering(order[np.sort(unplaced)])
        if not plan.prefill and not len(unplaced):
            self._steady = plan

    def _move_on(self, plan: CpuPlan, batch: AttentionBatch) -> CpuPlan:
        plan.write_elsewhere(batch)
        for group in plan.slab_groups:
            group.move_on()
            self.slabs.advance(group.placement.rows)
        return plan

    def _group(self, plan: CpuPlan, places: NDArray[np.int64], placement: Placement) -> SlabGroup:
        """The group of the rows at `places` of the batch."""
        batch = plan.batch
        slab = placement.slab
        slots = placement.slots
        heads = self.slabs.num_kv_heads
        lengths = batch.seq_lens[places].astype(np.int64) - placement.base
        newest = lengths - 1

        # Where the new K/V go: a line of the slab per [row, key or value, head].
        line = slots[:, None, None] * heads + np.arange(heads)
        first_value = len(slab.owner) * heads
        line = line + (np.arange(2) * first_value)[:, None]
        append = line * slab.capacity + newest[:, None, None]

        # The mask [slots, 1, capacity].
        known = np.zeros(int(slots.max()) + 1, np.int64)
        known[slots] = lengths
        hidden = torch.from_numpy(np.arange(slab.capacity) >= known[:, None])
        mask = torch.zeros(hidden.shape, dtype=self.slabs.dtype)
        mask.masked_fill_(hidden, HIDDEN)

        group = SlabGroup(
            placement,
            append=torch.from_numpy(append.reshape(-1)),
            mask=mask[:, None],
            column=torch.from_numpy(slots * slab.capacity + newest),
        )
        group.longest = int(lengths.max())
        tokens = torch.from_numpy(first_tokens(batch)[places])
        if plan.prefill or not is_range(places, len(batch.row)):
            group.tokens = tokens
        if group.tokens is not None or not is_range(slots, group.num_slots):
            group.queries = tokens
            group.slots = torch.from_numpy(slots)
        entering = np.flatnonzero(placement.entering)
        if len(entering):
            breaks = np.flatnonzero(np.diff(slots[entering]) != 1) + 1
            group.entering = [
                self._entry(batch, places[run], placement, run)
                for run in np.split(entering, breaks)
            ]
        return group

    def _entry(
        self,
        batch: AttentionBatch,
        places: NDArray[np.int64],
        placement: Placement,
        run: NDArray[np.int64],
    ) -> Entry:
        """Rows `run` of the placement, at `places` of the batch: their blocks, from where their slots begin."""
        block_size = self.block_size
        tokens = math.gcd(block_size, placement.slab.capacity)
        end = -(-batch.seq_lens[places] // block_size)[:, None]
        first = (placement.base[run] // block_size)[:, None]
        position = np.arange(0, placement.slab.capacity, tokens)
        wanted = first + position // block_size
        # Beyond its last block a row reads its own first one again, as in gathering.
        inside = np.where(wanted < end, wanted, first)
        blocks = batch.block_table[batch.row[places, None], inside]
        within = position % block_size // tokens
        index = self._block_index(blocks).reshape(-1, len(position))
        index = index * (block_size // tokens) + within
        slots = placement.slots[run]
        return Entry(
            slice(int(slots[0]), int(slots[-1]) + 1), torch.from_numpy(index.reshape(2, -1)), tokens
        )


def first_tokens(batch: AttentionBatch) -> NDArray[np.int64]:
    """The flattened index of each row's first token, i64[R]."""
    return np.cumsum(batch.num_tokens, dtype=np.int64) - batch.num_tokens


def is_range(numbers: NDArray[np.int64], count: int) -> bool:
    """Return True if they are 0, 1, …, count − 1."""
    if len(numbers) != count:
        return False
    return bool((numbers == np.arange(count)).all())


def _continues(plan: CpuPlan, batch: AttentionBatch) -> bool:
    """Same rows, same requests, one more token each, and room for it in every slab."""
    last = plan.batch
    return (
        len(last.row) == len(batch.row)
        and bool((last.row == batch.row).all())
        and bool((last.generation == batch.generation).all())
        and bool((last.seq_lens + 1 == batch.seq_lens).all())
        and bool((batch.num_tokens == 1).all())
        and all(group.longest < group.placement.slab.capacity for group in plan.slab_groups)
    )


def _follow(plan: CpuPlan, full: CpuPlan) -> None:
    """A pruned last layer: rows in slabs stay there, and gain their token even if they do not sample."""
    batch = plan.batch
    in_slab = np.zeros(len(batch.row), np.bool_)
    query_of = np.full(len(batch.block_table), -1)
    query_of[batch.row] = np.arange(len(batch.row))
    for group in full.slab_groups:
        rows = group.placement.rows
        slots = group.placement.slots
        asked = query_of[rows] >= 0
        queries = query_of[rows[asked]]
        in_slab[queries] = True
        plan.slab_groups.append(group.for_queries(queries, slots[asked]))
    plan.leave_to_gathering(plan.decode_order[~in_slab[plan.decode_order]])
