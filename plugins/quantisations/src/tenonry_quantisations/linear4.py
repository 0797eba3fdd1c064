"""Linear layers over matrices of 4 bits whose scales are of groups of columns. Worker process.

Few rows are multiplied with the 4 bits themselves, which is bound by reading them. That takes as long per row for any
number of rows, so more rows go through a copy in 8 bits.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from tenonry_quantisations.linear8 import Linear8
from tenonry_quantisations.rounding import rounded
from tenonry_torch_base.quantisations import QuantisedLinear

if TYPE_CHECKING:
    from tenonry_torch_base.quantisations import QuantisedWeight

_ATEN = torch.ops.aten
GROUP_SIZES = (256, 128, 64, 32)  # what the operation takes
OUTPUTS = 16  # it accepts multiples of this number
MIDDLE = 8  # what it takes off a value
FEW_ROWS = 2


def linear4(
    weight: QuantisedWeight, bias: torch.Tensor | None, dtype: torch.dtype
) -> QuantisedLinear | None:
    """None where the shape or the groups are none that the operation of torch takes."""
    rows, columns = weight.shape
    grouped = _in_order(weight)
    if rows % OUTPUTS or grouped is None:
        return None
    order, weight = grouped
    width = columns // weight.num_groups
    size = next((size for size in GROUP_SIZES if width % size == 0), None)
    if size is None:
        return None
    return Linear4(_cut(weight, width // size), order, size, bias, dtype)


def _in_order(weight: QuantisedWeight) -> tuple[torch.Tensor | None, QuantisedWeight] | None:
    """The weight with the columns of each group adjacent, and their original indices; None if groups differ in size."""
    if weight.group_of is None:
        return None, weight
    counts = weight.group_of.bincount(minlength=weight.num_groups)
    if counts.min() != counts.max():
        return None
    order = weight.group_of.argsort(stable=True)
    return order, replace(weight, values=weight.values[:, order], group_of=None)


def _cut(weight: QuantisedWeight, times: int) -> QuantisedWeight:
    """The same with each group split into equal parts."""
    if times == 1:
        return weight
    zeros = weight.zeros
    return replace(
        weight,
        scales=weight.scales.repeat_interleave(times, 1),
        zeros=None if zeros is None else zeros.repeat_interleave(times, 1),
    )


class Linear4(QuantisedLinear):
    """`order`: the input's columns in the order of the groups; None if they are in it."""

    __slots__ = ("bias", "many", "order", "pairs", "size", "weight")

    def __init__(
        self,
        weight: QuantisedWeight,
        order: torch.Tensor | None,
        size: int,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        self.size = size
        self.order = order
        self.bias = bias
        self.weight = _ATEN._convert_weight_to_int4pack_for_cpu(  # noqa: SLF001
            weight.values.int() + MIDDLE, 1
        )
        # (stored − 8) · scale + offset
        offsets = torch.zeros_like(weight.scales)
        if weight.zeros is not None:
            offsets = -weight.zeros * weight.scales
        pairs = torch.stack([weight.scales, offsets], -1).transpose(0, 1)
        self.pairs = pairs.to(dtype).contiguous()
        self.many = Linear8(rounded(weight.dequantised()), bias, dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.order is not None:
            x = x.index_select(1, self.order)
        if not 0 < len(x) <= FEW_ROWS:
            return self.many(x)
        made = _ATEN._weight_int4pack_mm_for_cpu(  # noqa: SLF001
            x.contiguous(), self.weight, self.size, self.pairs
        )
        return made if self.bias is None else made.add_(self.bias)
