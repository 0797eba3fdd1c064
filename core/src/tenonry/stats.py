"""Numbers for stat loggers: append-only typed records. Made in engine and front end, read on an observer thread.

Fields are only ever added, with defaults. Times are seconds; a duration is always measured within one process.
"""

from __future__ import annotations

import msgspec


class SchedulerStats(msgspec.Struct, array_like=True, kw_only=True):
    """One engine's state after a step. `prefix_cache_*`, `num_preemptions`, `num_steps` and `frames_dropped`
    count since the previous record.

    `extra` carries a scheduler author's own numbers.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_steps: int = 0
    frames_dropped: int = 0
    extra: dict[str, float] = {}


class FinishedRequestStats(msgspec.Struct, kw_only=True):
    """One request that ended. Latencies in seconds; `decode_s` spans first to last token.

    `start_time`: the arrival, from which `e2e_latency_s` counts, in seconds since 1970. `trace_headers`: the caller's.
    """

    request_id: str
    finish_reason: str
    num_prompt_tokens: int
    num_generation_tokens: int
    num_cached_tokens: int = 0
    e2e_latency_s: float = 0.0
    ttft_s: float | None = None
    queued_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    num_preemptions: int = 0
    max_tokens: int | None = None
    n: int = 1
    tags: dict[str, str | float] = {}
    trace_headers: dict[str, str] | None = None
    start_time: float = 0.0


class IterationStats(msgspec.Struct, kw_only=True):
    """What one engine frame brought to a front end."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    ttft_s: list[float] = []
    inter_token_latency_s: list[float] = []
    finished: list[FinishedRequestStats] = []


class StatRecord(msgspec.Struct, kw_only=True):
    """One delivery to a stat logger: either part may be missing. `time` is the front end's monotonic clock."""

    engine_index: int
    time: float
    scheduler: SchedulerStats | None = None
    iteration: IterationStats | None = None


class PluginRecord(msgspec.Struct, frozen=True, order=True):
    """One plugin, installed or in use. `target` is "module:Class", or a module."""

    kind: str
    name: str
    target: str
    distribution: str = ""
    version: str = ""


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration in use, for stat loggers that report it. It never leaves the machine by itself."""

    architecture: str
    dtype: str
    block_size: int
    gpu_memory_utilization: float
    kv_cache_bytes: int | None
    quantization: str | None = None
    enable_lora: bool = False
    enable_prefix_caching: bool
    enforce_eager: bool
    tensor_parallel_size: int
    data_parallel_size: int
    pipeline_parallel_size: int
    kv_connector: str | None
    kv_cache_dtype: str = "auto"
    enable_expert_parallel: bool = False
    all2all_backend: str | None = None
    disable_custom_all_reduce: bool = False
    context: str = "library"


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Facts learnt at start-up; replaced as a whole when they change. `num_gpu_blocks` is the sum over engines."""

    model: str
    served_model_name: str
    max_model_len: int
    num_gpu_blocks: int
    block_size: int
    engine_indexes: tuple[int, ...] = (0,)
    plugins: tuple[PluginRecord, ...] = ()
    usage: UsageRecord | None = None
