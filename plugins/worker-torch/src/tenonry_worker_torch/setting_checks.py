"""Rejects settings that a model or a quantisation cannot have, before a weight is read. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.errors import ConfigError
from tenonry_worker_torch.loading.linear_layers import linear_layers

if TYPE_CHECKING:
    from tenonry.config import EngineConfig
    from tenonry_torch_base.conflicts import Setup
    from tenonry_worker_torch.loading.load import CheckpointInfo
    from tenonry_worker_torch.loading.quantised import FoundQuantisation


def check_quantisation(found: FoundQuantisation | None, setup: Setup) -> None:
    """Raise ConfigError for weights that cannot be quantised at load; a checkpoint's can always be dequantised."""
    if found is None or not found.is_at_load:
        return
    reason = found.quantisation.refusal(setup.device, setup.dtype)
    if reason:
        raise ConfigError(f"quantization={found.quantisation.name}: {reason}; leave it out")


def check_adapters(found: CheckpointInfo, config: EngineConfig, max_cpu_loras: int | None) -> None:
    """Raise ConfigError if no adapter could be served."""
    if max_cpu_loras is not None and max_cpu_loras < config.max_loras:
        raise ConfigError(
            f"--worker-option max_cpu_loras={max_cpu_loras} is less than max_loras={config.max_loras}: a step cannot "
            "have more different adapters than are kept; raise the one or lower the other"
        )
    if not config.max_loras:
        raise ConfigError(
            "lora_modules: no adapters are served; add --max-loras and how many different ones a step may have"
        )
    if not linear_layers(found.whole):
        raise ConfigError(
            f"max_loras={config.max_loras}: {found.architecture} has no linear layers that adapters could add to; "
            "leave it out"
        )
