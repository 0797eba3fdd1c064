"""Pass that replays decoding steps as CUDA graphs. Worker process."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.attention.base import DecodeRows
from tenonry_worker_torch.fuse.decoder import FusedForward
from tenonry_worker_torch.passes.model_pass import ModelPass
from tenonry_worker_torch_cuda.graphs.captured import GraphedPass
from tenonry_worker_torch_cuda.graphs.maker import CudaGraphs

if TYPE_CHECKING:
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.passes.model_pass import PassFacts

logger = logging.getLogger("tenonry.worker")


class Graphs(ModelPass):
    """One launch for a decode-only step. Each graph is compared with its launches when it is recorded."""

    name = "graphs"
    changes_module = False

    def why_not(self, model: LoadedModel, facts: PassFacts) -> str | None:
        reason = refusal(model)
        if reason is not None:
            logger.info("CUDA graphs disabled, launching steps kernel by kernel: %s", reason)
        return reason

    def apply(self, model: LoadedModel, facts: PassFacts, changes: Changes) -> str:
        changes.set(model, "make_pass", partial(GraphedPass, maker=CudaGraphs()))
        return "recorded as steps need them"

    def is_right(self, model: LoadedModel, facts: PassFacts) -> bool:
        return True


def refusal(model: LoadedModel) -> str | None:
    """Return the reason why steps of a model cannot be replayed; None if they can."""
    parallel = model.parallel
    if model.adapters is not None:
        return "adapters are chosen in each step; --max-loras 0 serves without"
    if model.images is not None:
        return "images are placed in each step; --max-images 0 serves without"
    if model.pooler is not None or model.lengths is not None or model.states is not None:
        return "steps of this model depend on more than its tokens"
    if parallel.tensor.size > 1 or parallel.link.num_stages > 1 or parallel.experts is not None:
        return "ranks exchange data within a step; one rank has them"
    if not isinstance(model.forward, FusedForward):
        return "the model runs its own code, which may read values on the host"
    backend = model.backend
    if backend.num_groups > 1 or backend.decode_plan(no_rows(model.device)) is None:
        return f"attention backend '{backend.name}' plans each step by its lengths; use triton"
    return None


def no_rows(device: torch.device) -> DecodeRows:
    """Return an empty batch, to examine a backend's plan."""
    integers = torch.zeros(0, dtype=torch.int32, device=device)
    return DecodeRows(integers.view(0, 1), integers, integers.long())
