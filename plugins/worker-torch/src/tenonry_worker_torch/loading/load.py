"""Loads the model that a rank runs: the whole of it, or its part. Worker process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Look:
    """A model that this worker does not refuse. `whole` has no storage, and stays as it is."""

    architecture: str
    whole: PreTrainedModel


def look(path: str, *, load_format: str) -> Look:
    """The model in a folder before a weight is read. Raises ModelError with the layer that cannot be served."""
    raw = check_folder(path, needs_weights=load_format != "dummy")
    architecture = (raw.get("architectures") or [raw.get("model_type", "?")])[0]
    config = read_model_config(path, architecture)
    with progress_only_on_a_terminal():
        whole = skeleton(config, architecture, path)
        refuse_unsupported(whole, architecture)
    return Look(architecture, whole)


def load_model(
    path: str,
    *,
    load_format: str,
    dtype: str,
    device: torch.device,
    seed: int,
    parallel: Parallel | None = None,
    found: Look | None = None,
) -> PreTrainedModel:
    """This rank's part of the model on `device`, in evaluation mode. `found`: what `look` said, if it was asked.

    Raises ModelError, before any weight is read where possible.
    """
    is_dummy = load_format == "dummy"
    found = found or look(path, load_format=load_format)
    with progress_only_on_a_terminal():
        chosen = choose_dtype(dtype, found.whole.config, device)
        parallel = parallel or alone()
        if parallel.is_alone and not is_dummy:
            model = stored_model(path, found.whole, chosen, found.architecture)
        else:
            model = _part(
                path,
                found.whole,
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
