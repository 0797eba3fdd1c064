"""Optimisations of a loaded model, each step verified, all of them disabled by `fuse=false`. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.decoder import LeanForward, lean_forward
from tenonry_worker_torch.fuse.generic import pack_linears
from tenonry_worker_torch.fuse.mixers import renew_paths
from tenonry_worker_torch.fuse.quantised import QuantisedPacking, refuse_others
from tenonry_worker_torch.fuse.verify import layers_agree
from tenonry_worker_torch.fuse.widened import packing_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedModel

    from tenonry_torch_base.quantisations import Quantisation
    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.attention.layer import AttentionLayer, StepPlan
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.kernels.few_bits import FewBitsKernels
    from tenonry_worker_torch.state.mixer import PackedMixer

logger = logging.getLogger("tenonry.worker")


def fast_forward(
    model: PreTrainedModel,
    layers: dict[str, AttentionLayer],
    step: StepPlan,
    num_positions: int,
    is_right: Callable[[Forward], bool],
    all_agree: Callable[[bool], bool] = bool,
) -> LeanForward | None:
    """A verified fused forward pass; None if there is none, and the model's own code runs.

    `is_right` compares the logits of a whole forward pass with the model's own. Ranks that share layers must decide
    alike: `all_agree` is true if it is true on all of them.
    """
    lean = lean_forward(model, layers, step, num_positions)
    if not all_agree(lean is not None) or lean is None:
        return None
    is_same = all_agree(layers_agree(model, layers.values()))
    if not is_same or not all_agree(is_right(lean)):
        logger.info(
            "%s: fused forward differs from the reference; using the original module",
            type(model).__name__,
        )
        return None
    return lean


def pack(
    model: PreTrainedModel,
    lean: LeanForward | None,
    mixers: Sequence[PackedMixer] = (),
    kernels: StepKernels | None = None,
) -> None:
    """Lay weights out for the processor, if that is faster: those of the fused forward pass, or the model's own.

    `mixers`: the layers with state, whose paths read the same weights. `kernels`: kernels that may multiply with them.
    """
    if lean is None:
        if pack_linears(model):
            renew_paths(mixers)
        return
    packing = packing_for(model.dtype, model.device, kernels)
    if packing is not None:
        lean.pack(packing)


def quantise(
    model: PreTrainedModel,
    lean: LeanForward | None,
    quantisation: Quantisation,
    kernels: FewBitsKernels | None = None,
) -> bool:
    """Quantise the fused layers, and assign `kernels` to those that are faster with one. False if the matrices of a
    checkpoint stay dequantised.

    Raises ModelError for a model that cannot be quantised at load.
    """
    architecture = type(model).__name__
    name = quantisation.name
    if quantisation.config is None:
        refuse_others(lean, architecture, name)
    if lean is None:
        logger.info(
            "%s runs its own code, so what is stored as %s is dequantised", architecture, name
        )
        return False
    packing = QuantisedPacking(quantisation, model.dtype, model.device, kernels)
    lean.pack(packing)
    logger.info("Quantisation %s: %s", name, packing.text)
    return True
