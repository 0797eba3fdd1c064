"""Pass that makes a fused model batch invariant. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch_cpu.invariance.layers import make_invariant, refused
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class Invariance(ModelPass):
    """Kernels for all layers and the head, with the same bits for a token in any batch. Weights are laid out for them.

    Raises NotInvariantError where the model runs its own code, which promises nothing of other rows.
    """

    name = "invariance"
    conflicts: ClassVar[Mapping[str, str]] = {
        "device": "batch-invariant kernels run on the CPU; use --device cpu",
        "dtype": "batch-invariant kernels compute in float32 and bfloat16; use --dtype bfloat16",
        "quantization": "batch-invariant kernels compute with floats; leave it out",
        "quantised checkpoint": "batch-invariant kernels compute with floats; use a model with weights in floats",
        "tensor_parallel_size": "sums of several ranks are added in no fixed order; use one",
        "pipeline_parallel_size": "sums of several ranks are added in no fixed order; use one",
        "enable_expert_parallel": "sums of several ranks are added in no fixed order; leave it out",
        "max_images": "images are encoded together; use 0",
        "kv_connector": "K/V of another engine may have other bits; use none",
        "kv_cache_dtype": "batch-invariant kernels read K and V as floats; use auto",
        "attention_backend": "attention has kernels of its own there; leave that one out",
        "enforce_eager": "the model would run its own code; leave out --enforce-eager",
        "fuse": "the model would run its own code; leave out fuse=false",
        "model_passes": "batch-invariant kernels compute whole layers; leave that one out",
        "step_kernels": "only step kernels are batch invariant; leave that one out",
    }
    is_optional = False
    keeps_invariance = True

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return None if model.is_invariant else "batch invariance is off"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        architecture = type(model.module).__name__
        found = facts.kernels
        kernels = None if found is None else found.kernels.invariant()
        lean = model.forward
        if not isinstance(lean, LeanForward) or found is None or kernels is None:
            raise refused(f"{architecture} runs its own code")
        with facts.phases.of("packing"):
            added = [] if facts.seats is None else facts.seats.beside(lean)
            make_invariant(lean, kernels, architecture, added)
        model.chosen_kernels = (
            f"Step kernels {found.text}: {len(lean.layers)} × layer, the norm behind them and the head, the same bits "
            "for a token whatever runs beside it"
        )
        return f"{len(lean.layers)} layers"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """The end of loading compares the model, and its bits in several batches; a difference ends the start."""
        return True
