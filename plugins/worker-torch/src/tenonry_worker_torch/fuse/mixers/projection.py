"""The linear layers of a mixer as plain callables; those with the same input are merged if possible. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry_worker_torch.fuse.block import is_linear, is_output
from tenonry_worker_torch.fuse.linear import merge, output_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_worker_torch.fuse.generic import Projection


def plain(parameter: torch.Tensor) -> torch.Tensor:
    """The same in float32, without gradient."""
    return parameter.detach().float()


def decay_rate_of(module: Any) -> torch.Tensor:
    """float32 [heads], below zero: a step of 1 multiplies the state with exp of it."""
    return plain(module.A_log).exp().neg()


def input_projection(modules: Sequence[Any]) -> Projection | None:
    """Return `x` [N, in] → the concatenated outputs of all modules; None unless all are plain linear layers."""
    if all(map(is_linear, modules)):
        return merge(modules)
    (kind, *others) = {type(module) for module in modules}
    return None if others or not hasattr(kind, "side_by_side") else kind.side_by_side(modules)


def output_projection(module: Any) -> Projection | None:
    """Return `x` [N, in] → [N, out], whole on every rank; None unless the module is a plain linear layer."""
    if is_output(module):
        return output_of(module)
    return input_projection([module])
