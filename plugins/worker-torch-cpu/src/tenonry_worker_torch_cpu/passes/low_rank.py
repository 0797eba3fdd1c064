"""Pass that chooses step kernels of adapters. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch_cpu.kernels.low_rank import LowRankKernels

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class AdapterKernels(ModelPass):
    """Kernels of adapters, each compared and timed when an adapter's layer is made.

    Ranks may differ: each adds to its own outputs.
    """

    name = "adapter-kernels"
    keeps_invariance = True
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if facts.adapter_targets is None:
            return "no adapters are served"
        return "there are no step kernels" if facts.kernels is None else None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        assert facts.kernels is not None and facts.adapter_targets is not None  # noqa: S101, PT018 - `why_not` looked
        max_rank = facts.adapter_targets.max_rank
        kernels = LowRankKernels(facts.kernels, max_rank, is_required=model.is_invariant)
        changes.set(facts.adapter_targets, "kernels", kernels)
        return f"up to rank {max_rank}"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Return True: no layer has one yet."""
        return True
