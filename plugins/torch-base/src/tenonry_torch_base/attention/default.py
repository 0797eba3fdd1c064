"""The default attention backend of a device. Worker process."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING

import torch

from tenonry.errors import PluginNotFound
from tenonry_torch_base.points import ATTENTION_BACKENDS, default_backend, resolve_class
from tenonry_torch_base.settings import torch_settings

if TYPE_CHECKING:
    from tenonry.interfaces.worker import WorkerContext
    from tenonry_torch_base.attention.base import AttentionBackend

logger = logging.getLogger("tenonry.worker")

KERNELS = "triton"  # on CUDA
ANYWHERE = "sdpa"


def backend_of(device: torch.device, resolved: dict[str, str]) -> type[AttentionBackend]:
    """The best installed backend that runs on the device; a line in the log has the reason for a slower one."""
    if device.type == "cuda":
        fast = fast_backend(device, resolved)
        if fast is not None:
            return fast
    found: type[AttentionBackend] = resolve_class(
        ATTENTION_BACKENDS, default_backend(device.type), resolved
    )
    return found


def fast_backend(device: torch.device, resolved: dict[str, str]) -> type[AttentionBackend] | None:
    """The backend with kernels for GPUs, if it can be used."""
    tried: dict[str, str] = {}
    try:
        found: type[AttentionBackend] = resolve_class(ATTENTION_BACKENDS, KERNELS, tried)
    except PluginNotFound:
        report_slower(f"pip install {ATTENTION_BACKENDS.provider[KERNELS]} for the faster one")
        return None
    reason = found.refusal((), torch.bfloat16, device)
    if reason is not None:
        report_slower(f"not '{KERNELS}': {reason.partition('; use ')[0]}")
        return None
    resolved |= tried
    return found


def slower_backend(
    backend: type[AttentionBackend],
    error: Exception,
    context: WorkerContext,
    resolved: dict[str, str],
) -> type[AttentionBackend]:
    """The reference backend, if a model could not be built with the default one for GPUs.

    Raises the `error` for any other backend, for a configured one, and with several ranks, which must agree.
    """
    is_named = torch_settings(context.config).attention_backend is not None
    if backend.name != KERNELS or is_named or context.config.world_size > 1:
        raise error
    report_slower(f"not '{KERNELS}', which failed: {type(error).__name__}: {error}")
    found: type[AttentionBackend] = resolve_class(ATTENTION_BACKENDS, ANYWHERE, resolved)
    return found


@cache
def report_slower(reason: str) -> None:
    """Log once per reason: the backend is chosen for the facts of a model and again for its load."""
    logger.warning("Attention backend '%s', %s", ANYWHERE, reason)
