"""Settings of workers on torch, with vLLM's names. Light: imported by the front end as well."""

from __future__ import annotations

from typing import Literal

from tenonry.config import EngineConfig, setting
from tenonry_drafters.settings import DrafterSettings
from tenonry_grammars.settings import GrammarSettings


class WorkerSettings(GrammarSettings, DrafterSettings):
    """Settings of every worker on torch. One without a setting's capability rejects it by name."""

    skip_model_check: bool = False
    """Skip the startup comparison of packed and separate sequences."""
    enforce_eager: bool = setting(False, replaceable=True)
    """Run the model as loaded: no fusion, no graphs."""
    quantization: str | None = setting(None, alias="-q", capability="quantization")
    """Quantise weights at load: int8 or int4. Checkpoints declare their own format."""
    batch_invariant: bool | None = setting(None, capability="batch_invariant")
    """Produce the same bits for a request in any batch. Enabled by default in float32, if supported."""
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = setting("auto", capability="kv_cache_dtype")
    """KV cache data type. auto: the model's; int8 and fp8: 8 bits with a scale per token and KV head."""
    lora_modules: tuple[str, ...] = setting((), capability="lora", nargs="+")
    """Adapters to load at startup, each as name=path or a JSON object with name and path."""
    attention_backend: str | None = setting(
        None, capability="attention_backend", group="plugins", replaceable=True
    )
    """Attention backend."""


class TorchSettings(WorkerSettings):
    """Settings of the worker `torch`."""

    max_lora_rank: int = setting(16, ge=1, le=4096)
    """Maximum LoRA rank."""


def torch_settings(config: EngineConfig) -> TorchSettings:
    """The settings of the worker `torch`."""
    return config.section(TorchSettings)
