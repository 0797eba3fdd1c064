"""Model pass that chooses Triton kernels for quantised matrices. Worker process.

Quantised layers are made by the pass `quantisation`, which comes later.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_attention_triton.backend import TritonBackend, has_triton
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts

logger = logging.getLogger("tenonry.worker")


class TritonMatrixPass(ModelPass):
    """See the module. Without it weights are dequantised as they are loaded."""

    name = "triton-matrices"
    changes_module = False

    @classmethod
    def preload(cls) -> None:
        if has_triton():
            import tenonry_attention_triton.launch_matrices  # noqa: F401

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        if facts.quantisation is None:
            return "the weights are floats"
        reason = TritonBackend.refusal((), model.dtype, model.device)
        if reason is not None:
            reason = reason.partition("; use ")[0]
            logger.info("No Triton kernels for quantised matrices, dequantising them: %s", reason)
        return reason

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        from tenonry_attention_triton.matrices import TritonMatrices

        changes.set(model, "matrix_kernels", TritonMatrices(model.device, model.dtype))
        return "dequantised in the kernel"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        return True
