"""A rank's weights under the names of the model's own parameters, also after layers were fused and packed. Worker
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.errors import ModelError
from tenonry_worker_torch.fuse.generic import PackedModule
from tenonry_worker_torch.fuse.linear import packed_rows

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from torch import nn

    from tenonry_worker_torch.loaded_model import LoadedModel


@torch.no_grad()
def plain_weights(
    model: LoadedModel, without: Container[str] = frozenset()
) -> dict[str, torch.Tensor]:
    """Name → tensor, of all tensors of this rank except `without`; packed layouts are converted back to rows.

    Tensors already in rows are the model's own, without copies.
    """
    found = {
        name: tensor for name, tensor in model.module.state_dict().items() if name not in without
    }
    for name, part in model.module.named_modules():
        found |= _packed_in(name, part, with_weight=f"{name}.weight" not in without)
    return found


def _packed_in(name: str, part: nn.Module, *, with_weight: bool) -> dict[str, torch.Tensor]:
    """Weight of a linear layer that exists only in packed form, and its bias if that was packed as well."""
    if isinstance(part, PackedModule):
        return part.in_rows(f"{name}.", with_weight=with_weight)
    rows = packed_rows(part) if with_weight else None
    return {} if rows is None else {f"{name}.weight": rows}


def check_whole(weights: dict[str, torch.Tensor], names: Iterable[str]) -> None:
    """Raise ModelError for a missing or lost parameter, before others are used."""
    for name in names:
        held = weights.get(name)
        if held is None or not held.numel():
            raise ModelError(
                f"the worker does not hold {name}; bring it as well, or wake the weights up first"
            )
