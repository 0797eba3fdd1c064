"""Passes over the structure of a model: paths of layers with state, and fused layers. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import fused_forward
from tenonry_worker_torch.fuse.mixers import use_paths
from tenonry_worker_torch.fuse.verify import layers_agree
from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class MixerPaths(ModelPass):
    """Decoding paths of layers with state, each compared with its module."""

    name = "mixers"
    keeps_invariance = True
    settles_with_next = True
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return None if model.mixers else "no layer has state"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        if not use_paths(model.mixers, changes, model.parallel.layer_mates.all_agree):
            raise NotUsed("no layer with state has a known mechanism")
        return f"{sum(each.path is not None for each in model.mixers)} layers"


class Fusion(ModelPass):
    """A fused forward pass, compared layer by layer and as a whole."""

    name = "fusion"
    keeps_invariance = True
    changes_module = False

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        positions = max(facts.num_positions, *facts.checks.lengths)
        fused = fused_forward(model.module, model.layers, model.step, positions)
        if fused is None:
            raise NotUsed(f"{type(model.module).__name__} has another structure")
        # A step that samples from no row would skip the last layer, whose experts others wait for.
        fused.can_prune = fused.can_prune and model.parallel.experts is None
        changes.set(model, "forward", fused)
        return f"{len(fused.layers)} layers"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Compare twice; ranks decide alike after each comparison, in which all take part."""
        is_same = layers_agree(model.module, model.layers.values())
        is_same = model.parallel.layer_mates.all_agree(is_same)
        return is_same and facts.checks.agrees(model.forward)
