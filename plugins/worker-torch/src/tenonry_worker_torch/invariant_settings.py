"""Settings required by `batch_invariant`. Worker process; checked before a weight is read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from tenonry.errors import ConfigError
from tenonry_torch_base.points import DEFAULT_KERNELS, STEP_KERNELS
from tenonry_torch_base.settings import torch_settings
from tenonry_worker_torch.conflicts import Conflicts, first_conflict
from tenonry_worker_torch_cpu.passes.invariance import Invariance

if TYPE_CHECKING:
    from tenonry_worker_torch.conflicts import Setup
    from tenonry_worker_torch.step_kernels import FoundKernels

logger = logging.getLogger("tenonry.worker")
PROMISE = "batch_invariant: what a token gets must not depend on what runs beside it"

CONFLICTS = Conflicts("batch_invariant", Invariance.conflicts)

# Unless a user asks, these alone: their layers have such kernels in most shapes, and in bfloat16 a single stream is
# quicker with others.
DTYPE = torch.float32
FAMILIES = frozenset({"llama", "mistral", "phi3", "qwen2", "qwen3"})


def serves_invariant(setup: Setup, family: str) -> bool:
    """Return True if the model is to be served so, as far as known before it is loaded: if configured, or, for a known
    family, if nothing prevents it. `refuse_conflicts` has rejected what prevents a configured one.
    """
    configured = torch_settings(setup.config).batch_invariant
    if configured is not None:
        return configured
    if family not in FAMILIES or setup.dtype != DTYPE:
        return False
    conflict = first_conflict(CONFLICTS, setup)
    if conflict is not None:
        logger.info("Served without batch invariance, the default in float32: %s", conflict)
    return conflict is None


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
