"""Linear layers as plain callables, and the interface of packings, which change weight layouts. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn
from torch.nn import functional

from tenonry_torch_base.parallel.layers import RowLinear
from tenonry_worker_torch.loading.stored import StoredLinear

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.parallel.groups import TensorGroup


PACKED_ROWS = "tenonry_packed_rows"  # of a module whose weight is some rows of a packed one


class Linear(Protocol):
    """`x` [N, in] → [N, out]; `add` returns the result plus `other` [N, out]; `packed` the same layer in its final
    layout.
    """

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor: ...

    def packed(self, packing: Packing, /) -> Linear: ...


class Unpackable(Protocol):
    """A packed layer, whose weight [out, in] can be had in rows again."""

    def in_rows(self) -> torch.Tensor: ...


class Packing(Protocol):
    """Changes the layout of weights. It receives the original modules, so that nothing is held twice."""

    def dense(self, linear: DenseLinear) -> Linear:
        """One matrix; the modules `sources` of it may lose theirs."""
        ...

    def parted(self, linear: PartedLinear) -> Linear:
        """Matrices of layers that read the same input."""
        ...

    def module(self, linear: nn.Linear) -> nn.Module | None:
        """Replacement of a layer of a module that runs its own code; None to keep it."""
        ...


class DenseLinear:
    """`weight` [out, in] as the modules `sources` have it."""

    __slots__ = ("bias", "sources", "weight")

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None, sources: Sequence[nn.Linear] = ()
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.sources = sources

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight, self.bias).add_(other)

    def packed(self, packing: Packing) -> Linear:
        return packing.dense(self)


class PartedLinear:
    """Linear layers that read the same input, as their modules have them until they are packed as one.

    So no third copy of the weights is made on the way.
    """

    __slots__ = ("sources",)

    def __init__(self, sources: Sequence[nn.Linear]) -> None:
        self.sources = sources

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        made = [part.forward(x) for part in self.sources]  # without hooks
        return torch.cat(made, 1) if len(made) > 1 else made[0]

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def packed(self, packing: Packing) -> Linear:
        return packing.parted(self)


class SummedLinear:
    """A piece of a layer that was cut along its inputs: partial sums are added over the ranks, then the bias, once."""

    __slots__ = ("bias", "group", "piece")

    def __init__(self, piece: Linear, bias: torch.Tensor | None, group: TensorGroup) -> None:
        self.piece = piece
        self.bias = bias
        self.group = group

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = self.group.sum(self.piece(x))
        return out if self.bias is None else out.add_(self.bias)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def packed(self, packing: Packing) -> SummedLinear:
        return SummedLinear(self.piece.packed(packing), self.bias, self.group)


class GatheredLinear:
    """A part of a layer cut along its outputs, which every rank needs whole: `size` outputs."""

    __slots__ = ("group", "piece", "size")

    def __init__(self, piece: Linear, group: TensorGroup, size: int) -> None:
        self.piece = piece
        self.group = group
        self.size = size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = self.group.gather(self.piece(x))
        return outputs.narrow(-1, 0, self.size)

    def add(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return self(x).add_(other)

    def packed(self, packing: Packing) -> GatheredLinear:
        return GatheredLinear(self.piece.packed(packing), self.group, self.size)


def mark_packed(made: Unpackable, sources: Sequence[nn.Linear]) -> None:
    """Drop the weights of the modules `sources`, held concatenated by `made`."""
    begin = 0
    for module in sources:
        end = begin + module.weight.shape[0]
        setattr(module, PACKED_ROWS, (made, begin, end))
        take_weight(module)
        begin = end


def take_weight(module: nn.Linear) -> None:
    """Empty the module's weight, which is stored elsewhere."""
    if isinstance(module, StoredLinear):
        module.drop()
    module.weight = nn.Parameter(module.weight.new_empty(0), requires_grad=False)


def detached_bias(module: nn.Linear) -> torch.Tensor | None:
    """Return the bias without its gradient; None without a bias."""
    return None if module.bias is None else module.bias.detach()


def is_half_on_host(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if weights are laid out anew: in bfloat16 on a CPU."""
    return device.type == "cpu" and dtype == torch.bfloat16


def packed_rows(module: nn.Module) -> torch.Tensor | None:
    """Reconstruct the weight that a module lost when it was packed, in rows; None if it lost none."""
    found = vars(module).get(PACKED_ROWS)
    if found is None:
        return None
    layer, begin, end = found
    return layer.in_rows()[begin:end]


def output_of(module: nn.Linear) -> Linear:
    """A layer that ends an attention or feed-forward part, cut along its inputs or whole."""
    if isinstance(module, RowLinear):
        piece = DenseLinear(module.weight.detach(), None, (module,))
        return SummedLinear(piece, detached_bias(module), module.group)
    return PartedLinear([module]) if isinstance(module, StoredLinear) else merge([module])


def side_by_side(modules: Sequence[nn.Linear]) -> Linear:
    """Linear layers that read the same input as one: merged now, or when they are packed."""
    weight = modules[0].weight
    if isinstance(modules[0], StoredLinear):
        return PartedLinear(modules)
    if len(modules) > 1 and is_half_on_host(weight.dtype, weight.device):
        return PartedLinear(modules)
    return merge(modules)


def merge(modules: Sequence[nn.Linear]) -> DenseLinear:
    """Linear layers that read the same input as one, with concatenated outputs.

    The modules keep working, on views of the merged weight.
    """
    for module in modules:
        if isinstance(module, StoredLinear):
            module.to_floats()
    if len(modules) == 1:
        module = modules[0]
        return DenseLinear(module.weight.detach(), detached_bias(module), modules)
    weight = torch.cat([module.weight.detach() for module in modules])
    begin = 0
    for module in modules:
        end = begin + module.out_features
        module.weight = nn.Parameter(weight[begin:end], requires_grad=False)
        begin = end
    bias = merged_bias(modules)
    return DenseLinear(weight, bias, modules)


def merged_bias(modules: Sequence[nn.Linear]) -> torch.Tensor | None:
    """One bias for all outputs, zero for layers without one; None without any."""
    if all(module.bias is None for module in modules):
        return None
    parts = []
    for module in modules:
        bias = detached_bias(module)
        if bias is None:
            bias = module.weight.new_zeros(module.out_features)
        parts.append(bias)
    return torch.cat(parts)
