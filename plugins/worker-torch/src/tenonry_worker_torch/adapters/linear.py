"""Linear layers with adapters: addends for the tokens of some rows, after the layer itself. Worker process.

y = W x + s · B (A x), where A [rank, in] and B [out, rank] are the adapter's of the row
(https://arxiv.org/abs/2106.09685). The adapters of a step are in slots: A of all slots is one tensor, and B is one for
each part of a merged layer. s is included in B.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tenonry_torch_base.invariant import LayerAdapters
from tenonry_torch_base.low_rank import LowRankParts
from tenonry_torch_base.parallel.layers import RowLinear
from tenonry_worker_torch.fuse.linear import DenseLinear, Linear, PartedLinear, SummedLinear

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from tenonry_torch_base.low_rank import LowRankKernel
    from tenonry_torch_base.parallel.groups import TensorGroup
    from tenonry_worker_torch.adapters.batch import AdapterBatch, Segment, StepAdapters
    from tenonry_worker_torch.fuse.linear import Packing

    Weights = Mapping[str, tuple[torch.Tensor, torch.Tensor]]
    MakeKernel = Callable[[LowRankParts], LowRankKernel | None]

WIDTH_MULTIPLE = 16  # see `LowRankParts`


class Part(NamedTuple):
    """One layer of a merged one: its name, and its outputs."""

    name: str
    begin: int
    size: int


class LowRank:
    """Slots of one layer, or of several merged ones. Memory is allocated once an adapter adds to one of them."""

    def __init__(
        self, parts: Sequence[Part], num_slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.parts = tuple(parts)
        self.num_slots = num_slots
        self.dtype = dtype
        self.make_kernel: MakeKernel | None = None
        self._options: dict[str, Any] = {"dtype": dtype, "device": device}
        self.clear()

    def clear(self) -> None:
        """Empty all slots, and free their memory."""
        self._used: list[Part] = []  # parts that an adapter in a slot adds to
        self._rank = 0
        self._down: torch.Tensor | None = None  # [slots, in, used · rank, filled up]
        self._ups: list[torch.Tensor] = []  # per used part [slots, rank, out]
        self._kernel: LowRankKernel | None = None

    @property
    def kernel(self) -> LowRankKernel | None:
        """Return the kernel for steps of few tokens; None without one, or before an adapter adds to a part."""
        return self._kernel

    def put(self, slots: Sequence[Weights | None], changed: int) -> None:
        """The adapter in slot `changed` is another one."""
        weights = slots[changed] or {}
        mine = [part for part in self.parts if part.name in weights]
        fits = all(part in self._used for part in mine) and all(
            len(weights[part.name][0]) <= self._rank for part in mine
        )
        if fits:
            self._fill(changed, weights)
        else:
            self._grow(slots)

    def _grow(self, slots: Sequence[Weights | None]) -> None:
        """Allocate memory for the contents of the slots."""
        held = [weights for weights in slots if weights]
        self._used = [part for part in self.parts if any(part.name in each for each in held)]
        found = [each[part.name] for each in held for part in self._used if part.name in each]
        self._rank = max(len(down) for down, _ in found)
        count = self.num_slots
        in_features = found[0][0].shape[1]
        columns = len(self._used) * self._rank
        width = -(-columns // WIDTH_MULTIPLE) * WIDTH_MULTIPLE
        self._down = torch.zeros(count, in_features, width, **self._options)
        self._ups = [
            torch.zeros(count, self._rank, part.size, **self._options) for part in self._used
        ]
        for slot, weights in enumerate(slots):
            if weights:
                self._fill(slot, weights)
        if self.make_kernel is not None:
            begins = tuple(part.begin for part in self._used)
            parts = LowRankParts(down=self._down, ups=tuple(self._ups), begins=begins)
            self._kernel = self.make_kernel(parts)

    def _fill(self, slot: int, weights: Weights) -> None:
        if self._down is None:
            return
        self._down[slot].zero_()
        for number, part in enumerate(self._used):
            up = self._ups[number][slot]
            up.zero_()
            if part.name not in weights:
                continue
            down_part, up_part = weights[part.name]
            rank = len(down_part)
            first = number * self._rank
            self._down[slot, :, first : first + rank] = down_part.T
            up[:rank] = up_part.T

    # ------------------------------------------------------------------ in a step
    def add(
        self,
        x: torch.Tensor,
        out: torch.Tensor,
        batch: AdapterBatch,
        group: TensorGroup | None = None,
    ) -> None:
        """Add the adapters' output for `x` [T, in] to `out` [T, out], in place.

        `group`: the ranks that hold other inputs of the layer, if `out` is summed over them already.
        """
        if self._down is None:
            return
        if self._kernel is not None and batch.sorted is not None and group is None:
            if x.dtype == out.dtype == self.dtype and x.stride(1) == out.stride(1) == 1:
                self._kernel(x, out, batch.sorted)
                return
        if batch.is_padded:
            self._add_padded(x, out, batch, group)
            return
        for segment in batch.segments:
            self._add_segment(x, out, segment, group)

    def _add_padded(
        self, x: torch.Tensor, out: torch.Tensor, batch: AdapterBatch, group: TensorGroup | None
    ) -> None:
        """Compute all slots with one product for A, and one for B per part."""
        assert self._down is not None  # noqa: S101 - `add` looked
        count = batch.num_slots
        given = x.index_select(0, batch.gather).view(count, batch.longest, -1)
        down = self._down.narrow(0, batch.first, count)
        inner = torch.bmm(given, down)
        if group is not None:
            inner = group.sum(inner)
        for number, part in enumerate(self._used):
            of_part = inner.narrow(2, number * self._rank, self._rank)
            up = self._ups[number].narrow(0, batch.first, count)
            made = torch.bmm(of_part, up).view(-1, part.size).index_select(0, batch.back)
            target = out.narrow(1, part.begin, part.size)
            if batch.rows is None:
                target.add_(made)
            else:
                target.index_add_(0, batch.rows, made)

    def _add_segment(
        self, x: torch.Tensor, out: torch.Tensor, segment: Segment, group: TensorGroup | None
    ) -> None:
        """One slot, whose tokens may be neighbours."""
        assert self._down is not None  # noqa: S101 - `add` looked
        slot, begin, count, index = segment
        given = x.narrow(0, begin, count) if index is None else x.index_select(0, index)
        inner = given @ self._down[slot]
        if group is not None:
            inner = group.sum(inner)
        for number, part in enumerate(self._used):
            of_part = inner.narrow(1, number * self._rank, self._rank)
            target = out.narrow(1, part.begin, part.size)
            up = self._ups[number][slot]
            if index is None:
                target.narrow(0, begin, count).addmm_(of_part, up)
            else:
                target.index_add_(0, index, of_part @ up)


class AdaptedLinear:
    """A `Linear` of the fused layers with adapters. A layer sharded along its inputs is wrapped inside its sum."""

    __slots__ = ("inner", "low_rank", "step")

    def __init__(self, inner: Linear, low_rank: LowRank, step: StepAdapters) -> None:
        self.inner = inner
        self.low_rank = low_rank
        self.step = step

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        batch = self.step.of(len(x))
        if batch is not None:
            self.low_rank.add(x, out, batch)
        return out

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        out = self.inner.add(x, other)
        batch = self.step.of(len(x))
        if batch is not None:
            self.low_rank.add(x, out, batch)
        return out

    def packed(self, packing: Packing) -> AdaptedLinear:
        return AdaptedLinear(self.inner.packed(packing), self.low_rank, self.step)


class AddedToLayer:
    """Adapters within a layer that is computed by one kernel: in its projection, output, gate and up, down."""

    __slots__ = ("_low_ranks", "_step")

    def __init__(self, low_ranks: Sequence[LowRank | None], step: StepAdapters) -> None:
        self._low_ranks = low_ranks
        self._step = step

    def __call__(self, keep: torch.Tensor | None) -> LayerAdapters | None:
        """Return the adapters of the current step for its continuing tokens `keep` i64[Q], or all; None without any."""
        batch = self._step.full
        if batch is None:
            return None
        kernels = [None if each is None else each.kernel for each in self._low_ranks]
        slots = batch.slots
        going_on = slots if keep is None else slots.index_select(0, keep)
        return LayerAdapters(*kernels, slots, going_on)


class AddAfter:
    """A forward hook of a linear layer of a model that runs its own code; inputs [T, in] or [1, T, in]."""

    def __init__(self, low_rank: LowRank, step: StepAdapters) -> None:
        self.low_rank = low_rank
        self.step = step

    def __call__(
        self, module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor
    ) -> None:
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        batch = self.step.of(len(x))
        if batch is None:
            return
        group = None
        if isinstance(module, RowLinear):
            group = module.group
            if module.splits_input:
                x = x.narrow(1, group.rank * module.in_features, module.in_features)
        self.low_rank.add(x, output.view(len(x), -1), batch, group)


def sources_of(linear: Linear) -> Sequence[nn.Linear]:
    """Original modules of a fused layer, in the order of their outputs."""
    if isinstance(linear, SummedLinear):
        return sources_of(linear.piece)
    return linear.sources if isinstance(linear, DenseLinear | PartedLinear) else ()


def adapted(linear: Linear, low_rank: LowRank, step: StepAdapters) -> Linear:
    """Return `linear` with adapters. Partial sums receive partial additions: Σ (Wᵢ + B Aᵢ) xᵢ over the ranks i."""
    if isinstance(linear, SummedLinear):
        piece = AdaptedLinear(linear.piece, low_rank, step)
        return SummedLinear(piece, linear.bias, linear.group)
    return AdaptedLinear(linear, low_rank, step)
