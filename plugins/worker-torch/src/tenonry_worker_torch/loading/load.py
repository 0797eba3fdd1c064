"""Loads the model that a rank runs: the whole of it, or its part. Worker process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.folder import check_folder
from tenonry_torch_base.weights import (
    check_complete,
    progress_only_on_a_terminal,
    read_model_config,
    skeleton,
    stored_model,
    weights_of,
)
from tenonry_worker_torch.loading.refusals import refuse_unsupported
from tenonry_worker_torch.parallel.groups import alone

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from tenonry_worker_torch.parallel.groups import Parallel


def load_model(
    path: str,
    *,
    load_format: str,
    dtype: str,
    device: torch.device,
    seed: int,
    parallel: Parallel | None = None,
) -> PreTrainedModel:
    """This rank's part of the model on `device`, in evaluation mode.

    Raises ModelError, before any weight is read where possible.
    """
    is_dummy = load_format == "dummy"
    raw = check_folder(path, needs_weights=not is_dummy)
    architecture = (raw.get("architectures") or [raw.get("model_type", "?")])[0]
    config = read_model_config(path, architecture)
    with progress_only_on_a_terminal():
        whole = skeleton(config, architecture, path)
        refuse_unsupported(whole, architecture)
        chosen = choose_dtype(dtype, config, device)
        parallel = parallel or alone()
        if parallel.is_alone and not is_dummy:
            model = stored_model(path, whole, chosen, architecture)
        else:
            model = _part(
                path,
                whole,
                chosen,
                parallel,
                seed if is_dummy else None,
            )
    return model.to(device).eval().requires_grad_(False)


def _part(
    path: str,
    whole: PreTrainedModel,
    dtype: torch.dtype,
    parallel: Parallel,
    seed: int | None,
) -> PreTrainedModel:
    """One rank's part of a stored model, or, with a seed, of one with random weights."""
    from tenonry_worker_torch.loading.rank_model import RankModel

    architecture = type(whole).__name__
    rank_model = RankModel(whole, whole.config, parallel)
    with ExitStack() as open_files, weights_of(architecture, path):
        weights = rank_model.stored(path, open_files) if seed is None else rank_model.random(seed)
        model, info = rank_model.model_class.from_pretrained(
            None,
            config=rank_model.config,
            state_dict=weights,
            dtype=dtype,
            output_loading_info=True,
        )
    check_complete(info, path, architecture)
    return model
