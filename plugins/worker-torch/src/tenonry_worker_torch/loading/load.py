"""Loads the model that a rank runs: the whole of it, or its part. Worker process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.checkpoint import Checkpoint
from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.folder import architecture_of, check_folder
from tenonry_torch_base.parallel.groups import alone
from tenonry_torch_base.parallel.sharded import read_index, stored_pieces
from tenonry_torch_base.read_ahead import read_ahead
from tenonry_torch_base.ties import settle_ties
from tenonry_torch_base.weights import (
    check_complete,
    placed_on,
    progress_only_on_a_terminal,
    read_model_config,
    reserving_nothing,
    skeleton,
    stored_model,
    weights_of,
)
from tenonry_worker_torch.loading.quantised import attach, find_quantisation, forget, stays_stored
from tenonry_worker_torch.loading.refusals import (
    refuse_blind,
    refuse_encoder_decoder,
    refuse_unsupported,
)
from tenonry_worker_torch.loading.stored import attach_stored, has_blocks, postpone

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tenonry_torch_base.parallel.groups import Parallel
    from tenonry_torch_base.step_kernels import StepKernels
    from tenonry_worker_torch.loading.quantised import FoundQuantisation


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A model supported by this worker. `whole` has no storage, and remains unchanged.

    `checkpoint`: its stored tensors; None with random weights, with `is_sharded` (separate files per rank), and with
    `is_bare` (there are none, and it cannot be loaded). `is_invariant`: served with batch invariance.
    """

    architecture: str
    whole: PreTrainedModel
    checkpoint: Checkpoint | None
    is_sharded: bool = False
    quantised: FoundQuantisation | None = None
    is_invariant: bool = False
    is_bare: bool = False


def look(
    path: str,
    *,
    load_format: str,
    towers: bool = False,
    quantization: str | None = None,
    is_bare: bool = False,
) -> CheckpointInfo:
    """Examine the model in a folder before a weight is read; `towers`: with its vision encoder. `quantization`: the
    setting. `is_bare`: weights are missing and not needed.

    Raises ModelError with the unsupported layer, or the file and the tensor that do not fit.
    """
    is_dummy = load_format == "dummy"
    is_sharded = load_format == "sharded"
    raw = check_folder(path, needs_weights=not is_dummy and not is_bare, reads_quantised=True)
    quantised = find_quantisation(quantization, raw, path, load_format)
    architecture = architecture_of(raw)
    config = read_model_config(path, architecture)
    forget(config)
    refuse_encoder_decoder(config, architecture)  # transformers would build the decoder alone
    with progress_only_on_a_terminal():
        whole = skeleton(config, architecture, path)
        refuse_unsupported(whole, architecture)
        if towers:
            whole = skeleton(config, architecture, path, towers=True)
            refuse_blind(whole, architecture)
    if is_sharded:
        read_index(path, 0)
    if is_dummy or is_sharded or is_bare:
        return CheckpointInfo(architecture, whole, None, is_sharded, quantised, is_bare=is_bare)
    stored_as = None
    if quantised is not None and not quantised.is_at_load:
        stored_as = quantised.quantisation
    built = [whole]

    def make() -> tuple[PreTrainedModel, Checkpoint]:
        model = built.pop() if built else skeleton(config, architecture, path, towers=towers)
        return model, Checkpoint(path, model, stored_as)

    with progress_only_on_a_terminal():
        whole, checkpoint = settle_ties(config, make)
    checkpoint.check(whole)
    return CheckpointInfo(architecture, whole, checkpoint, is_sharded, quantised)


def load_model(  # noqa: PLR0913 - by name
    path: str,
    *,
    load_format: str,
    dtype: str,
    device: torch.device,
    seed: int,
    parallel: Parallel | None = None,
    found: CheckpointInfo | None = None,
    kernels: StepKernels | None = None,
    keeps_matrices: bool = False,
) -> PreTrainedModel:
    """This rank's part of the model on `device`, in evaluation mode. `found`: result of `look`, if available.
    `kernels`: for quantised matrices in blocks, which may stay in the layout of kernels. `keeps_matrices`: quantised
    ones remain quantised on the device, with the floats of one at a time.

    Raises ModelError, before any weight is read where possible.
    """
    found = found or look(path, load_format=load_format)
    parallel = parallel or alone()
    if found.checkpoint is not None:
        tensor = parallel.tensor
        link = parallel.link
        with weights_of(found.architecture, path):
            rank = link.stage * tensor.size + tensor.rank
            read_ahead(found.checkpoint, rank, link.num_stages * tensor.size)
    with progress_only_on_a_terminal():
        chosen = choose_dtype(dtype, found.whole.config, device)
        if parallel.is_alone and found.checkpoint is not None:
            kernels = kernels if has_blocks(found.checkpoint) else None
            is_kept = stays_stored(found.quantised, device, chosen) and (
                kernels is not None or keeps_matrices
            )
            if is_kept:
                model = _with_matrices(path, found, found.checkpoint, chosen, device, kernels)
            else:
                model = _whole(path, found, found.checkpoint, chosen, device)
            attach(model, found.checkpoint)
        else:
            model = _part(path, found, chosen, parallel, seed, device)
    return model.to(device).eval().requires_grad_(False)


def _whole(
    path: str,
    found: CheckpointInfo,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
) -> PreTrainedModel:
    """Load a stored model with all its weights except postponed ones."""
    return stored_model(
        path, found.whole, dtype, found.architecture, checkpoint, **placed_on(device)
    )


def _with_matrices(
    path: str,
    found: CheckpointInfo,
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    kernels: StepKernels | None,
) -> PreTrainedModel:
    """A stored model whose quantised matrices stay so."""
    postpone(found.whole, checkpoint, dtype, device)
    with reserving_nothing():
        model = _whole(path, found, checkpoint, dtype, device)
    with weights_of(found.architecture, path):
        attach_stored(model, checkpoint, kernels)
    return model


def _part(
    path: str,
    found: CheckpointInfo,
    dtype: torch.dtype,
    parallel: Parallel,
    seed: int,
    device: torch.device,
) -> PreTrainedModel:
    """One rank's part of a stored model, or, without a checkpoint, of one with random weights."""
    from tenonry_worker_torch.loading.rank_model import RankModel

    architecture = type(found.whole).__name__
    rank_model = RankModel(found.whole, found.whole.config, parallel)
    with ExitStack() as open_files, weights_of(architecture, path):
        weights: Any
        if found.is_sharded:
            weights = stored_pieces(path, parallel, open_files)
        elif found.checkpoint is None:
            weights = rank_model.random(seed)
        else:
            weights = rank_model.stored(found.checkpoint, open_files)
        model, info = rank_model.model_class.from_pretrained(
            None,
            config=rank_model.config,
            state_dict=weights,
            dtype=dtype,
            output_loading_info=True,
            **placed_on(device),
        )
    check_complete(info, path, architecture)
    return model
