"""Model pass that chooses the Triton kernel of top-k and top-p. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry_attention_triton.backend import TritonBackend, has_triton
from tenonry_worker_torch.passes.model_pass import ModelPass

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts

logger = logging.getLogger("tenonry.worker")


class TritonTruncation(ModelPass):
    """See the module. It chooses the thresholds that sorted rows have, so no token changes."""

    name = "triton-truncation"
    changes_module = False

    @classmethod
    def preload(cls) -> None:
        if has_triton():
            import tenonry_attention_triton.truncation  # noqa: F401

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        reason = TritonBackend.refusal((), model.dtype, model.device)
        if reason is not None:
            reason = reason.partition("; use ")[0]
            logger.info("No Triton kernel for top-k and top-p, rows are sorted: %s", reason)
        return reason

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        from tenonry_attention_triton.truncation import thresholds

        one = torch.ones(1, model.vocab_size, device=model.device) / model.vocab_size
        thresholds(
            one, torch.ones(1, dtype=torch.int64, device=model.device), one[:, 0]
        )  # compiles it
        changes.set(model, "thresholds", thresholds)
        return "without sorting"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        return True
