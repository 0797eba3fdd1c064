"""Rejects settings incompatible with a model, a device or each other, before a weight is read. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tenonry.errors import ConfigError
from tenonry_torch_base.device import choose_dtype
from tenonry_worker_torch.attention.kv_storage import AUTO
from tenonry_worker_torch.loading.linear_layers import linear_layers

if TYPE_CHECKING:
    import torch

    from tenonry.config import EngineConfig
    from tenonry_worker_torch.loading.load import CheckpointInfo


def check_quantisation(
    found: CheckpointInfo, config: EngineConfig, device: torch.device, options: Any
) -> None:
    """Raises ConfigError where weights cannot be quantised at load; those of a checkpoint can always be dequantised."""
    if found.quantised is None or not found.quantised.is_at_load:
        return
    quantisation = found.quantised.quantisation
    dtype = choose_dtype(config.dtype, found.whole.config, device)
    reason = quantisation.refusal(device, dtype)
    if reason:
        raise ConfigError(f"quantization={quantisation.name}: {reason}; leave it out")
    if config.enforce_eager or not getattr(options, "fuse", True):
        raise ConfigError(
            f"quantization={quantisation.name}: layers are quantised where they are fused; leave out --enforce-eager "
            "and --worker-option fuse=false"
        )


def check_kv_cache_dtype(config: EngineConfig, device: torch.device) -> None:
    """Raises ConfigError for a device on which K and V are kept in the model's type only."""
    if config.kv_cache_dtype != AUTO and device.type != "cpu":
        raise ConfigError(
            f"kv_cache_dtype={config.kv_cache_dtype}: worker 'torch' keeps K and V in 8 bits on the CPU, and the model "
            f"is on {device}; use --device cpu, or leave --kv-cache-dtype out"
        )


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
    if config.pipeline_parallel_size > 1:
        raise ConfigError(
            f"max_loras={config.max_loras}: worker 'torch' serves no adapters over pipeline stages; use "
            "--tensor-parallel-size instead of --pipeline-parallel-size"
        )
