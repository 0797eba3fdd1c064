"""Passes over the weights of a model: adapters beside them, quantisation, packing. Worker process.

None of them is undone: what they replace is freed, layer by layer, so that nothing is held twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch_cpu.kernels.few_bits import FewBitsKernels
from tenonry_worker_torch.fuse.mixers import renew_paths
from tenonry_worker_torch.fuse.quantised import QuantisedPacking, refuse_others
from tenonry_worker_torch_cpu.packing.widened import packing_for
from tenonry_worker_torch_cpu.passes.kernels import may_have_kernels
from tenonry_worker_torch.passes.model_pass import ModelPass, NotUsed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts

logger = logging.getLogger("tenonry.worker")


class WeightPass(ModelPass):
    """A pass that cannot be undone. The end of loading compares the model; a difference ends the start."""

    is_optional = False

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        return True


class AdapterSeats(WeightPass):
    """Wraps the projections of fused layers, so that adapters can add to them."""

    name = "adapters"

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if facts.seats is None:
            return "no adapters are served"
        return None if isinstance(model.forward, LeanForward) else "modules are hooked instead"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        lean = model.forward
        assert facts.seats is not None and isinstance(lean, LeanForward)  # noqa: S101, PT018 - `why_not` looked
        facts.seats.wrap(lean)
        return f"{len(lean.layers)} layers"


class Quantise(WeightPass):
    """Quantised matrices, with kernels where they are faster.

    Raises ModelError for a model that cannot be quantised at load.
    """

    name = "quantisation"
    conflicts: ClassVar[Mapping[str, str]] = {
        "enforce_eager": "layers are quantised where they are fused; leave out --enforce-eager",
        "fuse": "layers are quantised where they are fused; leave out fuse=false",
    }

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return "the weights are floats" if facts.quantisation is None else None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        quantisation: Quantisation = facts.quantisation  # type: ignore[assignment] - `why_not` looked
        lean = model.forward
        architecture = type(model.module).__name__
        if not isinstance(lean, LeanForward):
            if quantisation.config is None:
                refuse_others(None, architecture, quantisation.name)
            raise NotUsed(
                f"{architecture} runs its own code, so what is stored as {quantisation.name} is dequantised"
            )
        if quantisation.config is None:
            refuse_others(lean, architecture, quantisation.name)
        kernels = None
        if facts.kernels is not None and may_have_kernels(model):
            kernels = FewBitsKernels(facts.kernels, quantisation, model.dtype)
        packing = QuantisedPacking(quantisation, model.dtype, model.device, kernels)
        with facts.phases.of("packing"):
            lean.pack(packing)
        facts.checks.allow(quantisation.tolerance)
        model.quantisation = quantisation
        model.few_bits = kernels
        logger.info("Quantisation %s: %s", quantisation.name, packing.text)
        return f"{quantisation.name}: {packing.text}"


class Pack(WeightPass):
    """Weights laid out for the processor, where that is faster: those of fused layers, or of the model's own code."""

    name = "packing"

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        return "the weights are quantised" if model.quantisation is not None else None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        with facts.phases.of("packing"):
            return self._packed(model, facts)

    def _packed(self, model: LoadedModel, facts: PassFacts) -> str:
        lean = model.forward
        if not isinstance(lean, LeanForward):
            count = pack_linears(model.module)
            if not count:
                raise NotUsed(
                    f"it is for bfloat16 on the CPU, not {str(model.dtype)[6:]} on {model.device}"
                )
            renew_paths(model.mixers)
            return f"{count} linear layers"
        has_kernels = facts.kernels is not None and may_have_kernels(model)
        kernels = facts.kernels.kernels if facts.kernels is not None and has_kernels else None
        packing = packing_for(model.dtype, model.device, kernels)
        if packing is None:
            raise NotUsed(
                f"it is for bfloat16 on the CPU, not {str(model.dtype)[6:]} on {model.device}"
            )
        lean.pack(packing)
        return f"{len(lean.layers)} layers, {type(packing).__name__}"
