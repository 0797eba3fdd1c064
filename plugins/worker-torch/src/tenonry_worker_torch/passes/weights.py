"""Passes over the weights of a model: adapters, and quantisation. Worker process.

None of them is undone: replaced weights are freed, layer by layer, so that nothing is held twice.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from tenonry.errors import ModelError
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.fuse.quantised import QuantisedPacking, refuse_others
from tenonry_worker_torch.loading.stored import all_to_floats
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
        if facts.adapter_targets is None:
            return "no adapters are served"
        return None if isinstance(model.forward, FusedForward) else "modules are hooked instead"

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        fused = model.forward
        assert facts.adapter_targets is not None and isinstance(fused, FusedForward)  # noqa: S101, PT018 - `why_not` looked
        facts.adapter_targets.wrap(fused)
        return f"{len(fused.layers)} layers"


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
        if facts.quantisation is None:
            return "the weights are floats"
        if model.device.type != "cpu" and model.matrix_kernels is None:
            if facts.quantisation.config is None:
                raise ModelError(
                    f"quantization={facts.quantisation.name}: no kernels for quantised matrices run on {model.device}; "
                    "pip install tenonry-attention-triton, for GPUs of compute capability 8.0 or above, or leave it out"
                )
        return None

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        quantisation: Quantisation = facts.quantisation  # type: ignore[assignment] - `why_not` looked
        fused = model.forward
        architecture = type(model.module).__name__
        if model.device.type != "cpu" and model.matrix_kernels is None:
            all_to_floats(model.module)
            raise NotUsed("there are no kernels for quantised matrices")
        if not isinstance(fused, FusedForward):
            if quantisation.config is None:
                refuse_others(None, architecture, quantisation.name)
            all_to_floats(model.module)
            raise NotUsed(
                f"{architecture} runs its own code, so what is stored as {quantisation.name} is dequantised"
            )
        if quantisation.config is None:
            refuse_others(fused, architecture, quantisation.name)
        packing = QuantisedPacking(quantisation, model.dtype, model.matrix_kernels)
        with facts.phases.of("packing"):
            fused.pack(packing)
            if model.device.type != "cpu":
                all_to_floats(
                    model.module
                )  # layers that are not fused would dequantise in every step
        facts.checks.allow(quantisation.tolerance)
        model.quantisation = quantisation
        model.quantised_layers = packing.layers
        logger.info("Quantisation %s: %s", quantisation.name, packing.text)
        return f"{quantisation.name}: {packing.text}"
