"""What is done to a loaded model to make it fast, each step verified, all of it switched off by `fuse=false`. Worker
process.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import LeanForward, layer_types_of, lean_forward
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.linear import can_pack
from tenonry_worker_torch.fuse.verify import layers_agree

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

    from tenonry_worker_torch.attention.layer import AttentionLayer, StepPlan
    from tenonry_worker_torch.forward import Forward

logger = logging.getLogger(__name__)


def fast_forward(
    model: PreTrainedModel,
    layers: dict[str, AttentionLayer],
    step: StepPlan,
    max_model_len: int,
    is_right: Callable[[Forward], bool],
) -> LeanForward | None:
    """A lean forward pass that was found to compute the same, or None; then the model keeps running its own code.

    `is_right` compares the logits of a whole forward pass with the model's own.
    """
    lean = lean_forward(model, layers, step, max_model_len)
    if lean is None:
        pack_linears(model)
        return None
    specs = sorted((layer.spec for layer in layers.values()), key=lambda spec: spec.index)
    if not layers_agree(model, specs, layer_types_of(model, len(specs))) or not is_right(lean):
        logger.info("%s looks like a known layout but computes otherwise; it runs its own code", type(model).__name__)
        pack_linears(model)
        return None
    if can_pack(model.dtype, model.device):
        lean.pack()
    return lean
