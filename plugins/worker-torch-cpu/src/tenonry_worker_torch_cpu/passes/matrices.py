"""Pass that chooses step kernels of quantised matrices. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch_cpu.kernels.low_bit import LowBitKernels
from tenonry_worker_torch_cpu.passes.alone import why_no_kernels

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


class MatrixKernels(ModelPass):
    """Kernels of quantised matrices, each compared and timed when the pass `quantisation` makes its layer."""

    name = "matrix-kernels"
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if facts.quantisation is None:
            return "the weights are floats"
        if not isinstance(model.forward, FusedForward):
            return "the model runs its own code"
        return why_no_kernels(model, facts)

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        assert facts.kernels is not None and facts.quantisation is not None  # noqa: S101, PT018 - `why_not` looked
        kernels = LowBitKernels(facts.kernels, facts.quantisation, model.dtype)
        changes.set(model, "matrix_kernels", kernels)
        return facts.quantisation.name

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        """Return True: no layer has one yet."""
        return True
