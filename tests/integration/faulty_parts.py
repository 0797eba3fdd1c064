"""Model passes and runner features of another package that fail on the second of two ranks, by their path."""

from __future__ import annotations

import torch

from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch.runner.feature import RunnerFeature

FAULTY_RANK = 1


class Pass(ModelPass):
    """Replaces a norm by an equal function."""

    name = "odd"

    def apply(self, model, facts, changes):
        layer = model.forward.layers[0]
        norm = layer.before_mlp
        is_faulty = model.parallel.tensor.rank == FAULTY_RANK
        changes.set(layer, "before_mlp", lambda x: self.changed(norm(x), is_faulty=is_faulty))
        if is_faulty:
            self.fail_in_apply()
        return "1 layer"

    def fail_in_apply(self):
        """Nothing, unless overridden."""

    def changed(self, x, *, is_faulty):
        return x + 0


class ApplyRaises(Pass):
    def fail_in_apply(self):
        raise ValueError("no such shape")


class WhyNotRaises(Pass):
    def why_not(self, model, facts):
        if model.parallel.tensor.rank == FAULTY_RANK:
            raise RuntimeError("what is this")


class ComparisonRaises(Pass):
    def is_right(self, model, facts):
        if model.parallel.tensor.rank == FAULTY_RANK:
            raise RuntimeError("nothing to compare with")
        return super().is_right(model, facts)


class LayerRaises(Pass):
    def changed(self, x, *, is_faulty):
        if is_faulty:
            raise RuntimeError("no such kernel")
        return x + 0


class ResultsDiffer(Pass):
    def changed(self, x, *, is_faulty):
        return x * 2 if is_faulty else x + 0


class UndoRaises(ApplyRaises):
    def apply(self, model, facts, changes):
        if model.parallel.tensor.rank == FAULTY_RANK:
            changes.on_undo(self.fail_in_undo)
        return super().apply(model, facts, changes)

    def fail_in_undo(self):
        raise OSError("gone")


class Feature(RunnerFeature):
    """Does nothing."""

    name = "odd"

    @property
    def is_faulty(self):
        return self.context.model.parallel.tensor.rank == FAULTY_RANK

    def prepare(self, step):
        assert isinstance(step.token_ids, torch.Tensor)


class LoadRaises(Feature):
    def __init__(self, context):
        super().__init__(context)
        if self.is_faulty:
            raise ValueError("no such table")


class EnterRaises(Feature):
    def enter(self, new):
        if self.is_faulty and new.handle > 1:  # the warm-up is the first
            raise ValueError("no such request")


class StepRaises(Feature):
    def before_sampling(self, step):
        if self.is_faulty and len(step.inputs.row) > 1:
            raise ValueError("no such logits")
