"""Packed linear layers inside modules that run their own code. Worker process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenonry_worker_torch.fuse.linear import Packing

    Projection = Callable[[torch.Tensor], torch.Tensor]


class PackedLayer(Protocol):
    """A linear layer whose weight is laid out anew, and can be had in rows again."""

    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def in_rows(self) -> torch.Tensor: ...


class SideBySide:
    """Layers that read the same `x` [N, in]: their outputs [N, sum of outs]."""

    __slots__ = ("layers",)

    def __init__(self, layers: Sequence[Projection]) -> None:
        self.layers = layers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], 1)


class PackedModule(nn.Module):
    """A packed layer instead of an `nn.Linear` of a model that runs its own code."""

    def __init__(self, linear: nn.Linear, packed: PackedLayer) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._packed = packed

    @property
    def packed(self) -> PackedLayer:
        """The layer itself, without the module around it."""
        return self._packed

    @staticmethod
    def side_by_side(modules: Sequence[PackedModule]) -> Projection:
        """Modules that read the same input as one layer, without the modules around."""
        layers: list[Projection] = [module.packed for module in modules]
        return layers[0] if len(layers) == 1 else SideBySide(layers)

    @cached_property
    def weight(self) -> torch.Tensor:
        """The weight in rows, for model code that reads it: unpacked on first use, cached until `unpacked`."""
        return self._packed.in_rows()

    def in_rows(self, prefix: str, *, with_weight: bool = True) -> dict[str, torch.Tensor]:
        """Parameters, named as in an `nn.Linear` with this prefix."""
        found = {f"{prefix}weight": self._packed.in_rows()} if with_weight else {}
        if self.bias is not None:
            found[f"{prefix}bias"] = self.bias
        return found

    @property
    def is_read(self) -> bool:
        """True if the model's code read the weight itself."""
        return "weight" in vars(self)

    def unpacked(self) -> nn.Linear:
        """The original layer: a weight that is read in rows is not stored twice."""
        linear = nn.Linear(self.in_features, self.out_features, self.bias is not None, "meta")
        linear.weight = nn.Parameter(self.weight, requires_grad=False)
        if self.bias is not None:
            linear.bias = nn.Parameter(self.bias, requires_grad=False)
        return linear

    @property
    def bias(self) -> torch.Tensor | None:
        return self._packed.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._packed(x)


def pack_linears(model: nn.Module, packing: Packing) -> int:
    """Replace plain `nn.Linear` modules inside by those of a packing; returns their number."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    count = 0
    for parent, name, child in found:
        made = packing.module(child)
        if made is not None:
            setattr(parent, name, made)
            count += 1
    return count


def unpack_read(model: nn.Module) -> int:
    """Restore packed layers whose weight the model's code read in a run; returns their number."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if isinstance(child, PackedModule) and child.is_read
    ]
    for parent, name, child in found:
        setattr(parent, name, child.unpacked())
    return len(found)
