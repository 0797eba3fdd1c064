"""Optimisations inside a model that runs its own code: linear layers in bfloat16. Worker process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from torch import nn

from tenonry_worker_torch.fuse.linear import can_pack, detached_bias, is_half_on_host, pack
from tenonry_worker_torch_cpu.packing.widened import widened_linear

if TYPE_CHECKING:
    import torch

    from tenonry_worker_torch.fuse.linear import PackedLinear


class PackedModule(nn.Module):
    """A PackedLinear instead of an `nn.Linear` of a model that runs its own code."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._packed = pack(linear.weight.detach(), detached_bias(linear))

    @property
    def packed(self) -> PackedLinear:
        """The layer itself, without the module around it."""
        return self._packed

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


class WidenedModule(nn.Linear):
    """A linear layer of which many rows are multiplied in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return widened_linear(x, self.weight, self.bias)


def pack_linears(model: nn.Module) -> int:
    """Replace every plain `nn.Linear` inside by a packed one, or one that widens; how many were replaced."""
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear and is_half_on_host(child.weight.dtype, child.weight.device)
    ]
    for parent, name, child in found:
        kind = PackedModule if can_pack(child.weight.dtype, child.weight.device) else WidenedModule
        setattr(parent, name, kind(child))
    return len(found)


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
