"""Model passes of another package: a correct one, and some with one defect each."""

from __future__ import annotations

from tenonry_worker_torch.fuse.block import FusedMLP
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.model_pass import ModelPass


class Copied(FusedMLP):
    """Computes as the original."""


class Good(ModelPass):
    """Replaces the feed-forward parts of fused layers."""

    name = "good"

    def why_not(self, model, facts):
        return None if isinstance(model.forward, FusedForward) else "it has no fused layers"

    def apply(self, model, facts, changes):
        for layer in model.forward.layers:
            mlp = layer.mlp
            changes.set(layer, "mlp", Copied(mlp.gate_up, mlp.down, mlp.activation))
        return f"{len(model.forward.layers)} layers"


class ChangesResults(Good):
    name = "changes results"
    caught_by = "test_is_used"

    def apply(self, model, facts, changes):
        layer = model.forward.layers[0]
        norm = layer.before_mlp
        changes.set(layer, "before_mlp", lambda x: norm(x) * 2)
        return "1 layer"


class IsForNothing(Good):
    name = "is for nothing"
    caught_by = "test_is_used"

    def why_not(self, model, facts):
        return "no model is good enough"


class SaysNothing(Good):
    name = "says nothing"
    caught_by = "test_is_used"

    def apply(self, model, facts, changes):
        return ""


class ForgetsAChange(Good):
    name = "forgets a change"
    caught_by = "test_is_undone_without_a_trace"

    def apply(self, model, facts, changes):
        layer = model.forward.layers[0]
        layer.mlp = Copied(layer.mlp.gate_up, layer.mlp.down, layer.mlp.activation)
        return super().apply(model, facts, changes)


class ForgetsWeights(Good):
    name = "forgets weights"
    caught_by = "test_is_undone_without_a_trace"

    def apply(self, model, facts, changes):
        model.forward.layers[0].extra = model.forward.layers[0].mlp
        return super().apply(model, facts, changes)


class LooksToo(Good):
    name = "looks, and changes"
    caught_by = "test_why_not_changes_nothing"

    def why_not(self, model, facts):
        reason = super().why_not(model, facts)
        if reason is None:
            model.forward.layers[0].seen = True
        return reason


class TakesFusedLayersForGranted(Good):
    name = "takes fused layers for granted"
    caught_by = "test_models_of_other_structure_are_declined"

    def why_not(self, model, facts):
        return None


class OfTheFuture(Good):
    name = "of the future"
    interface_version = 99
    caught_by = "test_is_described"
