"""The model pass `chunked-mlp`: feed-forward layers in chunks of tokens. Worker process; light until it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class ChunkedOptions(PluginOptions):
    """Options of the model pass `chunked-mlp`."""

    tokens: int = Field(512, ge=1, description="Maximum tokens of a chunk.")


class ChunkedFeedForward(ModelPass):
    """Replaces the gated feed-forward part of fused layers; other layers have none to bound."""

    name = "chunked-mlp"
    Options = ChunkedOptions
    options = ChunkedOptions()
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        from tenonry_worker_torch.fuse.block import FusedMLP
        from tenonry_worker_torch.fuse.decoder import FusedForward

        if not isinstance(model.forward, FusedForward):
            return "the model has no fused layers"
        if not any(isinstance(layer.mlp, FusedMLP) for layer in model.forward.layers):
            return "no layer has a gated feed-forward part"
        return None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        from tenonry_pass_chunked_mlp.chunked import ChunkedMLP
        from tenonry_worker_torch.fuse.block import FusedMLP
        from tenonry_worker_torch.fuse.decoder import FusedForward

        assert isinstance(model.forward, FusedForward)  # noqa: S101 - `why_not` has checked it
        layers = [each for each in model.forward.layers if isinstance(each.mlp, FusedMLP)]
        for layer in layers:
            changes.set(layer, "mlp", ChunkedMLP(layer.mlp, self.options.tokens))
        return f"{len(layers)} layers, {self.options.tokens} tokens at a time"
