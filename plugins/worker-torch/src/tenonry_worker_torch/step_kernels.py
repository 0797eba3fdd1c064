"""Step kernels selected by the settings, or the reason for none. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from tenonry.errors import ConfigError, PluginNotFound
from tenonry_torch_base.points import DEFAULT_KERNELS, STEP_KERNELS, resolve_class
from tenonry_worker_torch.points import DEVICE_PASSES, missing_passes

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.step_kernels import StepKernels

logger = logging.getLogger("tenonry.worker")

NONE = "none"


class FoundKernels(NamedTuple):
    """`is_asked_for`: they were named in the settings, so they are used without being timed."""

    kernels: StepKernels
    is_asked_for: bool

    @property
    def text(self) -> str:
        """Name and description of the kernels."""
        kernels = self.kernels
        return (
            f"'{kernels.name}' ({kernels.description})"
            if kernels.description
            else f"'{kernels.name}'"
        )


def find_kernels(
    name: str | None,
    device: torch.device,
    resolved: dict[str, str],
    *,
    allow_experimental: bool = False,
) -> FoundKernels | None:
    """Find step kernels; None to use torch alone, with the reason in the log. `name`: None for installed ones, "none"
    for none. `allow_experimental`: see `resolve_point`.

    Raises PluginError, or ConfigError, for named ones that cannot be used.
    """
    if name == NONE or (name is None and device.type != "cpu"):
        return None
    missing = missing_passes(DEVICE_PASSES.get(device.type, {}))
    if missing:
        if name is None:
            return None
        raise ConfigError(
            f"step_kernels={name}: no model pass uses step kernels; pip install {' '.join(set(missing.values()))}, or "
            "leave step_kernels out"
        )
    try:
        found = resolve_class(
            STEP_KERNELS, name or DEFAULT_KERNELS, resolved, allow_experimental=allow_experimental
        )
    except PluginNotFound:
        if name is not None:
            raise
        logger.info(
            "No step kernels are installed, using torch alone; pip install %s",
            STEP_KERNELS.provider[DEFAULT_KERNELS],
        )
        return None
    reason = _refusal(found, device)
    if reason is None:
        return FoundKernels(found(), name is not None)
    resolved.pop(STEP_KERNELS.kind, None)
    if name is not None:
        raise ConfigError(f"step kernels '{name}' cannot be used: {reason}; leave step_kernels out")
    logger.warning("Step kernels '%s' disabled, using torch alone: %s", DEFAULT_KERNELS, reason)
    return None


def _refusal(kernels: type[StepKernels], device: torch.device) -> str | None:
    """Reason why these kernels cannot run on this device, or in this process."""
    if device.type not in kernels.devices:
        known = " or ".join(sorted(kernels.devices))
        return f"they read memory of device {known}, and the model is on device {device.type}"
    return kernels.refusal()
