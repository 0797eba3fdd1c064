"""What can be made faster inside a model that runs its own code: prepacked linear layers. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from tenonry_worker_torch.fuse.block import is_linear
from tenonry_worker_torch.fuse.linear import PackedModule, can_pack

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def pack_linears(model: PreTrainedModel) -> int:
    """Replace every plain `nn.Linear` by a packed one where that pays; how many were replaced."""
    if not can_pack(model.dtype, model.device):
        return 0
    found = [
        (parent, name, child)
        for parent in model.modules()
        for name, child in parent.named_children()
        if is_linear(child) and isinstance(child, nn.Linear)
    ]
    for parent, name, child in found:
        setattr(parent, name, PackedModule(child))
    return len(found)
