"""Settings required by `batch_invariant`. Worker process; checked before a weight is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError
from tenonry.plugin.discovery import find_entry_point
from tenonry_torch_base.conflicts import Conflicts, first_conflict
from tenonry_torch_base.points import ATTENTION_BACKENDS, DEFAULT_KERNELS, STEP_KERNELS
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.invariance import SETTING

if TYPE_CHECKING:
    from tenonry_torch_base.conflicts import Setup
    from tenonry_worker_torch.step_kernels import FoundKernels

logger = logging.getLogger("tenonry.worker")
BACKEND = "invariant"
PROMISE = "batch_invariant: what a token gets must not depend on what runs beside it"

CONFLICTS = Conflicts(
    SETTING,
    {
        "device": "batch-invariant kernels run on the CPU; use --device cpu",
        "dtype": "batch-invariant kernels compute in float32 and bfloat16; use --dtype bfloat16",
        "quantization": "batch-invariant kernels compute with floats; leave it out",
        "quantised checkpoint": "batch-invariant kernels compute with floats; use a model with weights in floats",
        "tensor_parallel_size": "sums of several ranks are added in no fixed order; use one",
        "pipeline_parallel_size": "sums of several ranks are added in no fixed order; use one",
        "enable_expert_parallel": "sums of several ranks are added in no fixed order; leave it out",
        "max_images": "images are encoded together; use 0",
        "kv_connector": "K/V of another engine may have other bits; use none",
        "kv_cache_dtype": "batch-invariant kernels read K and V as floats; use auto",
        "attention_backend": "attention has kernels of its own there; leave that one out",
        "enforce_eager": "the model would run its own code; leave out --enforce-eager",
        "fuse": "the model would run its own code; leave out fuse=false",
        "model_passes": "batch-invariant kernels compute whole layers; leave that one out",
        "step_kernels": "only step kernels are batch invariant; leave that one out",
    },
)

# Only these by default: their layers have such kernels in most shapes, and in bfloat16 a single stream is
# quicker with others.
DTYPE = torch.float32
FAMILIES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"})


def serves_invariant(setup: Setup, family: str) -> bool:
    """Return True if the model is to be served with batch invariance, as far as known before it is loaded: if
    configured, or, for a known family, if nothing prevents it. `refuse_conflicts` has rejected conflicts of a
    configured one.
    """
    configured = torch_settings(setup.config).batch_invariant
    if configured is not None:
        return configured
    if family not in FAMILIES or setup.dtype != DTYPE or not _is_installed():
        return False
    conflict = first_conflict(CONFLICTS, setup)
    if conflict is not None:
        logger.info("Batch invariance, the default in float32, disabled: %s", conflict)
    return conflict is None


def _is_installed() -> bool:
    return find_entry_point(ATTENTION_BACKENDS, BACKEND) is not None


def require_kernels(found: FoundKernels | None) -> None:
    """Raise ConfigError without step kernels, or without a use of them."""
    if not _is_installed():
        raise ConfigError(
            f"{PROMISE}; pip install {ATTENTION_BACKENDS.provider[BACKEND]}, or leave --batch-invariant out"
        )
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
