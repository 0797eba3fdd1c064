"""Settings required by `batch_invariant`. Worker process; checked before a weight is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.device import choose_dtype
from tenonry_torch_base.points import DEFAULT_KERNELS, STEP_KERNELS
from tenonry_worker_torch.fuse.kernels.found import NONE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tenonry.config import EngineConfig
    from tenonry_worker_torch.fuse.kernels.found import FoundKernels
    from tenonry_worker_torch.loading.load import CheckpointInfo

logger = logging.getLogger("tenonry.worker")
PROMISE = "batch_invariant: what a token gets must not depend on what runs beside it"

# Unless a user asks, these alone: their layers have such kernels in most shapes, and in bfloat16 a single stream is
# quicker with others.
DTYPE = torch.float32
FAMILIES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"})


def serves_invariant(
    found: CheckpointInfo, config: EngineConfig, device: torch.device, options: Any
) -> bool:
    """Return True if the model is to be served so, as far as known before it is loaded: if configured, or if nothing
    prevents it. Raises ConfigError if configured and something prevents it.
    """
    if config.batch_invariant is None:
        is_known = found.whole.config.model_type in FAMILIES
        is_known &= choose_dtype(config.dtype, found.whole.config, device) == DTYPE
        if not is_known:
            return False
        reason = next(_reasons(found, config, device, options), None)
        if reason is not None:
            logger.info("Served without batch invariance, the default in float32: %s", reason)
        return reason is None
    if config.batch_invariant:
        check_invariant(found, config, device, options)
    return config.batch_invariant


def check_invariant(
    found: CheckpointInfo, config: EngineConfig, device: torch.device, options: Any
) -> None:
    """Raises ConfigError for the first setting that the promise is not kept with."""
    for reason in _reasons(found, config, device, options):
        raise ConfigError(f"{PROMISE}; {reason}, or leave --batch-invariant out")


def _reasons(
    found: CheckpointInfo, config: EngineConfig, device: torch.device, options: Any
) -> Iterator[str]:
    """Reasons against it: each a setting, its value, why, and what to type."""
    if device.type != "cpu":
        yield f"device={device}: the kernels for that are for the CPU; use --device cpu"
    dtype = choose_dtype(config.dtype, found.whole.config, device)
    if dtype == torch.float16:
        yield "dtype=float16: they are in float32 and bfloat16; use --dtype bfloat16"
    if found.quantised is not None and not found.quantised.quantisation.refusal(device, dtype):
        name = found.quantised.quantisation.name
        yield f"quantization={name}: they are for floats; use a model with weights in floats"
    if config.world_size > 1 or config.enable_expert_parallel:
        yield f"{config.world_size} ranks: their sums are added in no fixed order; use one"
    if config.max_images:
        yield f"max_images={config.max_images}: images are encoded together; use 0"
    if config.kv_connector is not None:
        name = config.kv_connector.name
        yield f"kv_connector={name}: K/V of another engine may have other bits; use none"
    if config.kv_cache_dtype != "auto":
        yield f"kv_cache_dtype={config.kv_cache_dtype}: they read K and V as floats; use auto"
    if config.attention_backend is not None:
        name = config.attention_backend
        yield f"attention_backend={name}: it attends by kernels of its own; leave that one out"
    if config.enforce_eager or not getattr(options, "fuse", True):
        yield "the model would run its own code; leave out --enforce-eager and fuse=false"
    if passes := getattr(options, "model_passes", ()):
        yield f"model_passes={list(passes)}: its kernels compute whole layers; leave that one out"
    if getattr(options, "step_kernels", None) == NONE:
        yield "step_kernels=none: only kernels keep it; leave that one out"


def require_kernels(found: FoundKernels | None) -> None:
    """Raise ConfigError if there are no step kernels."""
    if found is None:
        raise ConfigError(
            f"{PROMISE}, and only step kernels keep that: pip install "
            f"{STEP_KERNELS.provider[DEFAULT_KERNELS]} on a machine with a C compiler, or leave --batch-invariant out"
        )
    if found.kernels.invariant() is None:
        raise ConfigError(
            f"{PROMISE}; step_kernels={found.kernels.name}: they have none that keep it; use "
            f"step_kernels={DEFAULT_KERNELS}, or leave --batch-invariant out"
        )
