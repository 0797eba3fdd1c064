"""Model pass `chunked-layers`: feed-forward layers in chunks of tokens. Worker process; light until it is applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry_worker_torch.passes.model_pass import ModelPass, PassFacts

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel


class ChunkedLayersOptions(PluginOptions):
    """Options of the model pass `chunked-layers`."""

    tokens: int = Field(default=512, ge=1, description="Maximum tokens of a chunk.")


class ChunkedLayers(ModelPass):
    """Replaces feed-forward layers of a fused model."""

    interface_version = 1
    name: ClassVar[str] = "chunked-layers"
    Options = ChunkedLayersOptions
    options = ChunkedLayersOptions()
    changes_module: ClassVar[bool] = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        from chunked_layers.layers import gated_layers

        return None if gated_layers(model) else "no fused layer has a gated feed-forward part"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        from chunked_layers.layers import ChunkedMLP, gated_layers

        layers = gated_layers(model)
        for layer, mlp in layers:
            changes.set(layer, "mlp", ChunkedMLP(mlp, self.options.tokens))
        return f"{len(layers)} layers, {self.options.tokens} tokens at a time"
