"""Pass that lays weights out for the processor. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.mixers import renew_paths
from tenonry_worker_torch.passes.model_pass import NotUsed
from tenonry_worker_torch.passes.weights import WeightPass
from tenonry_worker_torch_cpu.packing.widened import packing_for
from tenonry_worker_torch_cpu.passes.alone import has_kernels

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class Pack(WeightPass):
    """Weights laid out for the processor, where that is faster, in fused layers or the model's own modules.

    Quantised matrices are laid out already, and remain unchanged.
    """

    name = "packing"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        found = facts.kernels
        kernels = found.kernels if found is not None and has_kernels(model, facts) else None
        packing = packing_for(model.dtype, model.device, kernels)
        if packing is None:
            raise NotUsed(
                f"it is for bfloat16 on the CPU, not {str(model.dtype)[6:]} on {model.device}"
            )
        fused = model.forward
        with facts.phases.of("packing"):
            if isinstance(fused, FusedForward):
                fused.pack(packing)
                return f"{len(fused.layers)} layers, {type(packing).__name__}"
            count = pack_linears(model.module, packing)
            renew_paths(model.mixers)
        if not count:
            raise NotUsed("no linear layer of the model's own code is in bfloat16")
        return f"{count} linear layers"
