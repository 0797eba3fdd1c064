"""Settings that may differ between engines and those that replace them while requests are open. Any process."""

from __future__ import annotations

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
