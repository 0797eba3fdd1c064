"""Condition of all passes that choose step kernels. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts


def why_no_kernels(model: LoadedModel, facts: PassFacts) -> str | None:
    """Reason why no part of a model may have step kernels. Several ranks would have to agree on their timings."""
    if facts.kernels is None:
        return "there are no step kernels"
    parallel = model.parallel
    is_alone = parallel.layer_mates.size == 1 and parallel.link.num_stages == 1
    return None if is_alone else "several ranks share the model"


def has_kernels(model: LoadedModel, facts: PassFacts) -> bool:
    """Return True if parts of a model may have step kernels."""
    return why_no_kernels(model, facts) is None
