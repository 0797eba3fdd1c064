"""The linear layers of a mixer as plain callables; those that read the same input are merged if possible. Worker
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry_worker_torch.fuse.block import is_linear, is_output
from tenonry_worker_torch.fuse.generic import PackedModule, WidenedModule
from tenonry_worker_torch.fuse.linear import merge, output_of
from tenonry_worker_torch_cpu.packing.widened import WidenedPacking

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Projection = Callable[[torch.Tensor], torch.Tensor]


def plain(parameter: torch.Tensor) -> torch.Tensor:
    """The same in float32, without gradient."""
    return parameter.detach().float()


def decay_rate_of(module: Any) -> torch.Tensor:
    """float32 [heads], below zero: a step of 1 multiplies the state with exp of it."""
    return plain(module.A_log).exp().neg()


class SideBySide:
    """Layers that read the same `x` [N, in], each in oneDNN's own layout: their outputs [N, sum of outs]."""

    __slots__ = ("layers",)

    def __init__(self, layers: Sequence[Projection]) -> None:
        self.layers = layers

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([layer(x) for layer in self.layers], 1)


def input_projection(modules: Sequence[Any]) -> Projection | None:
    """`x` [N, in] → the concatenated outputs of all modules; None if one of them is no plain linear layer."""
    if all(map(is_linear, modules)):
        return merge(modules)
    if all(isinstance(module, WidenedModule) for module in modules):
        return WidenedPacking().dense(merge(modules))
    for module in modules:
        if not isinstance(module, PackedModule):
            return None
    layers = [module.packed for module in modules]
    if len(layers) == 1:
        return layers[0]
    return SideBySide(layers)


def output_projection(module: Any) -> Projection | None:
    """`x` [N, in] → [N, out], on every rank whole; None if the module is no plain linear layer."""
    if isinstance(module, PackedModule):
        return module.packed
    if isinstance(module, WidenedModule):
        return WidenedPacking().dense(merge([module]))
    if is_output(module):
        return output_of(module)
    return None
