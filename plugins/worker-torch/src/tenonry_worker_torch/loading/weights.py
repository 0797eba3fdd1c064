"""Architecture and weights of a causal language model, through transformers; no remote code, safetensors only.

Worker process.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ConfigError, ModelError
from tenonry_worker_torch.loading.folder import check_folder
from tenonry_worker_torch.loading.refusals import refuse_unsupported
from tenonry_worker_torch.parallel.groups import alone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from transformers import PretrainedConfig, PreTrainedModel

    from tenonry_worker_torch.parallel.groups import Parallel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(
    wanted: str,
    local_rank: int = 0,
    world_size: int = 1,
) -> torch.device:
    """`auto` is CUDA where there is one. Raises ConfigError when CUDA is asked for and has no device for this rank."""
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if not wanted.startswith("cuda"):
        return torch.device(wanted)
    if not torch.cuda.is_available():
        raise ConfigError(
            f"device={wanted}, but torch {torch.__version__} sees no CUDA device; use device=cpu"
        )
    if ":" not in wanted:
        wanted = f"cuda:{local_rank}"
    elif world_size > 1:
        raise ConfigError(
            f"device={wanted} is one device, but the engine has {world_size} ranks; use device=cuda"
        )
    count = torch.cuda.device_count()
    if torch.device(wanted).index >= count:
        raise ConfigError(
            f"{wanted} does not exist: this node has {count} CUDA devices, and {world_size} ranks need {world_size}; "
            "lower tensor_parallel_size or pipeline_parallel_size, or spread the ranks over nodes"
        )
    return torch.device(wanted)


def choose_dtype(
    wanted: str,
    config: Any,
    device: torch.device,
) -> torch.dtype:
    """`auto` is the checkpoint's own type; half precision becomes bfloat16 on CPUs that cannot compute with it."""
    if wanted != "auto":
        return DTYPES[wanted]
    stored = getattr(config, "dtype", None) or torch.float32
    dtype = DTYPES.get(str(stored).removeprefix("torch."), torch.float32)
    if (
        dtype == torch.float16
        and device.type == "cpu"
        and not torch.ops.mkldnn._is_mkldnn_fp16_supported()  # noqa: SLF001
    ):
        return torch.bfloat16
    return dtype


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
    config = _read_config(path, architecture)
    with _progress_only_on_a_terminal():
        whole = _skeleton(config, architecture, path)
        refuse_unsupported(whole, architecture)
        chosen = choose_dtype(dtype, config, device)
        parallel = parallel or alone()
        if parallel.is_alone and not is_dummy:
            model = _stored(path, config, chosen, architecture)
        else:
            model = _part(
                path,
                whole,
                config,
                chosen,
                parallel,
                seed if is_dummy else None,
            )
    return model.to(device).eval().requires_grad_(False)


def _read_config(path: str, architecture: str) -> PretrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError, TypeError) as error:
        raise ModelError(
            f"{architecture} in {path} is not known to the installed transformers (code that comes with a model is "
            f"never run): {_first_line(error)}"
        ) from error
    except Exception as error:  # its checks of values raise classes of their own
        raise _bad_config(path, error) from error


def _bad_config(path: str, error: Exception) -> ModelError:
    message = " ".join(str(error).split())[:300]
    return ModelError(
        f"{path}/config.json does not describe a model: {type(error).__name__}: {message}"
    )


def _skeleton(
    config: PretrainedConfig,
    architecture: str,
    path: str,
) -> PreTrainedModel:
    """The model without storage, to look at its layers."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except (ValueError, ImportError) as error:
        raise ModelError(
            f"{architecture} is no causal language model of transformers: {_first_line(error)}"
        ) from error
    except Exception as error:
        raise _bad_config(path, error) from error


def _stored(
    path: str,
    config: PretrainedConfig,
    dtype: torch.dtype,
    architecture: str,
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    with _weights_of(architecture, path):
        model, info = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,  # they are named below
            output_loading_info=True,
        )
    _check_complete(info, path, architecture)
    return model


def _part(
    path: str,
    whole: PreTrainedModel,
    config: PretrainedConfig,
    dtype: torch.dtype,
    parallel: Parallel,
    seed: int | None,
) -> PreTrainedModel:
    """One rank's part of a stored model, or, with a seed, of one with random weights."""
    from tenonry_worker_torch.loading.rank_model import RankModel

    architecture = type(whole).__name__
    rank_model = RankModel(whole, config, parallel)
    with ExitStack() as open_files, _weights_of(architecture, path):
        weights = rank_model.stored(path, open_files) if seed is None else rank_model.random(seed)
        model, info = rank_model.model_class.from_pretrained(
            None,
            config=rank_model.config,
            state_dict=weights,
            dtype=dtype,
            output_loading_info=True,
        )
    _check_complete(info, path, architecture)
    return model


@contextmanager
def _weights_of(architecture: str, path: str) -> Iterator[None]:
    """Any error on reading them becomes a ModelError that names model and folder."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the weights of {architecture} in {path} cannot be loaded: {_first_line(error)}"
        ) from error


def _check_complete(
    info: Any,
    path: str,
    architecture: str,
) -> None:
    for kind in ("missing_keys", "mismatched_keys"):
        if info.get(kind):
            names = ", ".join(str(key) for key in sorted(info[kind], key=str)[:3])
            raise ModelError(
                f"the weights in {path} do not fit {architecture}: {len(info[kind])} {kind}, such as {names}"
            )


@contextmanager
def _progress_only_on_a_terminal() -> Iterator[None]:
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
