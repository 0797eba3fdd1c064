"""Linear layers whose weight oneDNN has laid out for itself, which saves a tenth of a batch. Worker process."""

from __future__ import annotations

import torch
from torch import nn

# torch has no public name for these (its own compiler calls them); `can_pack` checks that they exist.
ONEDNN = torch.ops.mkldnn
PACK_ROWS = 256  # the batch for which oneDNN chooses the layout
LEAST_WEIGHTS = 1 << 14  # below it a layer gains nothing


class PackedLinear(nn.Module):
    """As `nn.Linear`, over its last dimension. Code that reads its `weight` gets it in rows, made anew each time."""

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


def pack_linears(module: nn.Module) -> dict[str, nn.Linear]:
    """Put packed layers in the places of those that are plain, and of no other module's weight; what was there."""
    uses: dict[int, int] = {}
    for part in module.modules():
        for weight in part.parameters(recurse=False):
            uses[id(weight)] = uses.get(id(weight), 0) + 1
    before: dict[str, nn.Linear] = {}
    for name, part in list(module.named_modules()):
        is_plain = type(part) is nn.Linear and not part._forward_hooks  # noqa: SLF001
        if is_plain and part.weight.numel() >= LEAST_WEIGHTS and uses[id(part.weight)] == 1:
            before[name] = part
            module.set_submodule(name, PackedLinear(part))
    return before


def put_back(module: nn.Module, linears: dict[str, nn.Linear]) -> None:
    """Undo `pack_linears`."""
    for name, linear in linears.items():
        module.set_submodule(name, linear)
