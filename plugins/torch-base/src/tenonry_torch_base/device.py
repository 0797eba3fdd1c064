"""Device and data type of a model. Worker process."""

from __future__ import annotations

import logging
import os
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.memory import keep_freed_memory

if TYPE_CHECKING:
    from tenonry_torch_base.options import DeviceOptions

logger = logging.getLogger("tenonry.worker")
IMPORTED_BY = os.getpid()  # another process in engines that are forks
FIRST_WITH_BFLOAT16 = (8, 0)  # compute capability
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_device(wanted: str, local_rank: int = 0, world_size: int = 1) -> torch.device:
    """Resolve `wanted`; `auto` is CUDA if available. Raises ConfigError if required CUDA is missing for this rank."""
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


def choose_dtype(wanted: str, config: Any, device: torch.device) -> torch.dtype:
    """`auto` is the checkpoint's own type, with two exceptions: half precision becomes bfloat16 on CPUs that cannot
    compute with it, and float32 becomes bfloat16 on GPUs. Raises ConfigError for bfloat16 on a GPU without it, once the
    process uses the GPU.
    """
    dtype = _wanted_dtype(wanted, config, device)
    if dtype == torch.bfloat16 and device.type == "cuda":
        _require_bfloat16(device)
    return dtype


def _wanted_dtype(wanted: str, config: Any, device: torch.device) -> torch.dtype:
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
    if dtype == torch.float32 and device.type == "cuda":
        _report_narrowed()
        return torch.bfloat16
    return dtype


def _require_bfloat16(device: torch.device) -> None:
    if (
        not torch.cuda.is_initialized()
    ):  # a process that only describes the model leaves the GPU alone
        return
    card = torch.cuda.get_device_capability(device)
    if card < FIRST_WITH_BFLOAT16:
        raise ConfigError(
            f"dtype bfloat16 needs a GPU of compute capability 8.0, and this one has {card[0]}.{card[1]}; use --dtype "
            "float16, or float32 where its range is too small"
        )


@cache
def _report_narrowed() -> None:
    """Log once per process: the type is chosen in several places."""
    logger.info("The float32 weights are loaded as bfloat16; --dtype float32 keeps them")


def prepare_device(device: torch.device, options: DeviceOptions) -> None:
    """Select `device` for this process; on the CPU, set threads and the C library as configured by the options."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        # cuDNN's attention makes a plan for each new shape, and step shapes change every few tokens.
        torch.backends.cuda.enable_cudnn_sdp(False)
        return
    if options.num_threads:
        torch.set_num_threads(options.num_threads)
    elif os.getpid() != IMPORTED_BY:
        # In a fork torch recreates its thread pool in the first call that uses it, which two threads that load a
        # model must not do concurrently. It read the variable at import, in the original process.
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        torch.set_num_threads(int(wanted) if wanted.isdigit() else torch.get_num_threads())
    if options.keep_freed_memory:
        keep_freed_memory()
