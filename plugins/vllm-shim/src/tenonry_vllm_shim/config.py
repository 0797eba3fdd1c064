"""The configuration in vLLM's shape: what its plugins read of `VllmConfig`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tenonry.config import EngineConfig

SECTIONS = {
    "model_config": (
        "model", "tokenizer", "revision", "dtype", "seed", "max_model_len", "served_model_name",
    ),
    "cache_config": (
        "block_size", "gpu_memory_utilization", "num_gpu_blocks", "enable_prefix_caching",
    ),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens"),
    "parallel_config": (
        "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    ),
}  # fmt: skip
ABSENT = ("kv_transfer_config", "lora_config", "speculative_config")


class VllmConfig:
    """Sections of settings under vLLM's names. Facts that are learnt at start-up are None until then.

    Raises AttributeError that names the section or setting which has no counterpart.
    """

    def __init__(self, config: EngineConfig) -> None:
        for section, names in SECTIONS.items():
            values = {name: getattr(config, name, None) for name in names}
            setattr(self, section, SimpleNamespace(**values))
        for section in ABSENT:
            setattr(self, section, None)

    def learn(self, **facts: Any) -> None:
        """Set facts that are known once the engines are ready, by name."""
        for section, names in SECTIONS.items():
            for name in set(names) & set(facts):
                setattr(getattr(self, section), name, facts[name])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"tenonry-vllm-shim has no VllmConfig.{name}; it has: {', '.join(sorted(vars(self)))}"
        )
