"""Pass that makes a fused model batch invariant. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.invariance import refused
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch_cpu.invariance.check import require_invariance
from tenonry_worker_torch_cpu.invariance.layers import make_invariant

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class Invariance(ModelPass):
    """Kernels for all layers and the head, with the same bits for a token in any batch. Weights are laid out for them.

    Raises NotInvariantError where the model runs its own code, which promises nothing of other rows.
    """

    name = "invariance"
    is_optional = False
    keeps_invariance = True

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return None if model.is_invariant else "batch invariance is off"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        architecture = type(model.module).__name__
        found = facts.kernels
        kernels = None if found is None else found.kernels.invariant()
        fused = model.forward
        if not isinstance(fused, FusedForward) or found is None or kernels is None:
            raise refused(f"{architecture} runs its own code")
        with facts.phases.of("packing"):
            added = (
                [] if facts.adapter_targets is None else facts.adapter_targets.added_layers(fused)
            )
            make_invariant(fused, kernels, architecture, added)
        model.chosen_kernels = (
            f"Step kernels {found.text}: {len(fused.layers)} × layer, the norm behind them and the head, the same bits "
            "for a token whatever runs beside it"
        )
        return f"{len(fused.layers)} layers"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Compare the bits of tokens in several batches. Raises NotInvariantError where they differ.

        The end of loading compares the model; a difference ends the start.
        """
        architecture = type(model.module).__name__
        if isinstance(model.forward, FusedForward):
            vocab_size = int(model.module.config.get_text_config().vocab_size)
            require_invariance(model.forward, facts.checks.run, vocab_size, architecture)
        return True
