"""Pass over small experts. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed
from tenonry_worker_torch_cpu.dense_experts import use_dense_experts

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class DenseExperts(ModelPass):
    """Small experts computed together, each kind compared with its module."""

    name = "experts"

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return None if model.parallel.layer_mates.size == 1 else "several ranks share the layers"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        count = use_dense_experts(model.module, changes)
        if not count:
            raise NotUsed("no layer has small experts")
        return f"{count} layers"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Each kind was compared in `apply`, and the model is at the end of loading."""
        return True
