"""Pass that chooses the step kernel of the search for allowed tokens. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed
from tenonry_worker_torch_cpu.kernels.best_allowed import best_allowed

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class TokenSearch(ModelPass):
    """Search for the best token that a grammar allows, by a kernel. It was compared and timed in `apply`."""

    name = "token-search"
    keeps_invariance = True
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return "there are no step kernels" if facts.kernels is None else None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        kernel = best_allowed(facts.kernels, model.dtype, model.vocab_size)
        if kernel is None:
            raise NotUsed("no kernel is correct and faster for these logits")
        changes.set(model, "best_allowed", kernel)
        return "a kernel"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        return True
