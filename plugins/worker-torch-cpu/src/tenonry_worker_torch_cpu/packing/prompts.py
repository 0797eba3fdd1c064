"""Linear layers with weights in oneDNN's layout, which saves a tenth of a batch. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

# torch has no public name for these (its own compiler calls them); `can_pack` checks that they exist.
ONEDNN = torch.ops.mkldnn
PACK_ROWS = 256  # the batch for which oneDNN chooses the layout
LEAST_WEIGHTS = 1 << 14  # below it a layer gains nothing


class PackedLinear(nn.Module):
    """As `nn.Linear`, over its last dimension. Reading its `weight` reconstructs the rows each time."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self.bias = linear.bias
        self._packed = ONEDNN._reorder_linear_weight(linear.weight.contiguous(), PACK_ROWS)  # noqa: SLF001

    @property
    def weight(self) -> torch.Tensor:
        """[out, in]."""
        rows: torch.Tensor = self._packed.to_dense()
        return rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [..., in]."""
        made: torch.Tensor = ONEDNN._linear_pointwise(x, self._packed, self.bias, "none", [], "")  # noqa: SLF001
        return made


def can_pack(dtype: torch.dtype, device: torch.device) -> bool:
    """Return True if oneDNN supports this dtype here; it supports float32 wherever torch was built with it."""
    if device.type != "cpu" or not hasattr(ONEDNN, "_reorder_linear_weight"):
        return False
    if dtype == torch.bfloat16:
        return bool(ONEDNN._is_mkldnn_bf16_supported())  # noqa: SLF001
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()


def pack_linears(module: nn.Module, replace: Callable[[nn.Module, str, nn.Module], None]) -> int:
    """Replace plain layers, whose weight no other module has, by packed ones; returns their number.

    `replace`: called with a parent, the name of its child, and the new child.
    """
    uses: dict[int, int] = {}
    for part in module.modules():
        for weight in part.parameters(recurse=False):
            uses[id(weight)] = uses.get(id(weight), 0) + 1
    found = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
        and not child._forward_hooks  # noqa: SLF001
        and child.weight.numel() >= LEAST_WEIGHTS
        and uses[id(child.weight)] == 1
    ]
    for parent, name, child in found:
        replace(parent, name, PackedLinear(child))
    return len(found)
