"""Feed-forward layers in chunks of tokens. Worker process; imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry_worker_torch.fuse.block import FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward

if TYPE_CHECKING:
    from tenonry_worker_torch.loaded_model import LoadedModel


class ChunkedMLP(FusedMLP):
    """A feed-forward layer for at most `tokens` tokens at a time."""

    def __init__(self, mlp: FusedMLP, tokens: int) -> None:
        super().__init__(mlp.gate_up, mlp.down, mlp.activation)
        self.tokens = tokens

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        starts = range(0, max(len(x), 1), self.tokens)
        return torch.cat([FusedMLP.inner(self, x[at : at + self.tokens]) for at in starts])


def gated_layers(model: LoadedModel) -> list[tuple[Any, FusedMLP]]:
    """Layers of a fused model with a gated feed-forward part, each with that part."""
    layers = model.forward.layers if isinstance(model.forward, FusedForward) else ()
    return [(layer, layer.mlp) for layer in layers if isinstance(layer.mlp, FusedMLP)]
