"""Which settings engines may have otherwise than those that they replace while requests are open. Front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from tenonry.config import EngineConfig, explain
from tenonry.errors import ConfigError

# What an engine does by itself: no token of an open request follows from it, and no fact that the front end knows.
REPLACEABLE = (
    "scheduler",
    "fallback_scheduler",
    "scheduling_policy",
    "executor",
    "attention_backend",
    "drafter",
    "max_num_seqs",
    "max_num_batched_tokens",
    "num_gpu_blocks_override",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "state_cache_memory_bytes",
    "enable_prefix_caching",
    "enable_chunked_prefill",
    "async_scheduling",
    "max_round_tokens",
    "validate_scheduler",
    "enforce_eager",
    "start_timeout",
    "step_timeout",
    "standby_engines",
)
HINTS = {
    "data_parallel_size": "use AsyncLLM.scale or POST /scale",
    "lora_modules": "use AsyncLLM.add_lora",
}
ELSEWHERE = "start another server with it, and move clients there"


def changed(config: EngineConfig, changes: Mapping[str, Any]) -> EngineConfig:
    """The configuration with these changes. Raises ConfigError for one that open requests would not survive."""
    for name in changes:
        if name in EngineConfig.model_fields and name not in REPLACEABLE:
            raise ConfigError(
                f"{name} cannot change while engines are replaced: open requests and the front end count on it; "
                f"{HINTS.get(name, ELSEWHERE)}. What can change: {', '.join(REPLACEABLE)}"
            )
    try:
        return config.replaced(**changes)
    except ValidationError as error:
        raise ConfigError(explain(error, list(EngineConfig.model_fields))) from None
