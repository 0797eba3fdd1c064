"""Model pass `chunked-layers`: feed-forward layers for at most 512 tokens at a time. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from tenonry_worker_torch.fuse.block import FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.model_pass import ModelPass, PassFacts

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel

TOKENS = 512


class Chunked(FusedMLP):
    """A feed-forward layer, in chunks of tokens."""

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        starts = range(0, max(len(x), 1), TOKENS)
        return torch.cat([FusedMLP.inner(self, x[at : at + TOKENS]) for at in starts])


class ChunkedLayers(ModelPass):
    """Replaces feed-forward layers of a fused model."""

    interface_version = 1
    name: ClassVar[str] = "chunked-layers"
    changes_module: ClassVar[bool] = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if not isinstance(model.forward, FusedForward):
            return "the model has no fused layers"
        if not all(isinstance(layer.mlp, FusedMLP) for layer in model.forward.layers):
            return "some layers have no gated feed-forward part"
        return None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        layers = model.forward.layers if isinstance(model.forward, FusedForward) else ()
        for layer in layers:
            mlp = layer.mlp
            if isinstance(mlp, FusedMLP):
                changes.set(layer, "mlp", Chunked(mlp.gate_up, mlp.down, mlp.activation))
        return f"{len(layers)} layers"
