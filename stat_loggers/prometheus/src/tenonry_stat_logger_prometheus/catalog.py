"""Catalogue of metrics: every metric with its type, labels, buckets, help and its names in other dashboards. Data only,
imported wherever the metrics are kept, exposed or documented.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from tenonry.outputs import FinishReason

PREFIX = "tenonry:"
VLLM_PREFIX = "vllm:"

# Label values come from these sets, from the operator's configuration or from the code of installed plugins; never
# from a request.
OTHER = "other"
FINISH_REASONS = (*(str(reason) for reason in FinishReason), OTHER)
REJECTION_REASONS = ("queue_full", "invalid", "draining", OTHER)
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level: 0, 1, 2
MAX_EXTRAS = 64  # names of a scheduler author's own numbers

# Reported under these names, a colon and the name of an adapter.
PER_ADAPTER = ("lora_requests_running", "lora_requests_waiting")
MAX_ADAPTERS = 64  # of one engine at a time; requests of further ones count as those of `other`

MAX_HELPERS = 16  # kinds of helpers with a separate label

ENGINE = ("model_name", "engine")
HELPER = ("model_name", "helper")

# Upper bounds, inclusive; the exposition adds +Inf. Time in seconds.
REQUEST_SECONDS = (
    *(
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1.0,
        1.5,
        2.5,
        5.0,
        7.5,
        10.0,
        15.0,
        20.0,
        30.0,
        45.0,
    ),
    *(60.0, 120.0, 300.0, 600.0, 1800.0),
)
FIRST_TOKEN_SECONDS = (
    *(
        0.001,
        0.0025,
        0.005,
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.25,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
    ),
    *(20.0, 40.0, 80.0, 160.0, 640.0),
)
TOKEN_SECONDS = (
    *(
        0.0005,
        0.001,
        0.0025,
        0.005,
        0.0075,
        0.01,
        0.015,
        0.02,
        0.03,
        0.04,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
    ),
    *(0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)
BLOCK_SECONDS = (
    *(
        0.001,
        0.0025,
        0.005,
        0.01,
        0.025,
        0.05,
        0.1,
        0.25,
        0.5,
        1.0,
        2.5,
        5.0,
        10.0,
        30.0,
        60.0,
        120.0,
        300.0,
    ),
    *(600.0, 1800.0),
)
TOKENS = (*(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5)), 1e6)
STEP_TOKENS = tuple(float(2**power) for power in range(17))
SAMPLES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


class MetricDef(NamedTuple):
    """One metric. `name` has no prefix and, for a counter, no `_total`; `vllm` lists its names for vLLM's dashboards.

    `labels` includes `model_name` where the metric has it, always first. `buckets` are upper bounds, inclusive.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ENGINE
    buckets: tuple[float, ...] = ()
    vllm: tuple[str, ...] = ()


def _gauge(name: str, text: str, *more: str, vllm: tuple[str, ...] | None = None) -> MetricDef:
    return MetricDef(name, "gauge", text, (*ENGINE, *more), (), (name,) if vllm is None else vllm)


def _counter(name: str, text: str, *more: str, vllm: tuple[str, ...] | None = None) -> MetricDef:
    return MetricDef(name, "counter", text, (*ENGINE, *more), (), (name,) if vllm is None else vllm)


def _histogram(
    name: str, buckets: tuple[float, ...], text: str, *, vllm: tuple[str, ...] | None = None
) -> MetricDef:
    return MetricDef(name, "histogram", text, ENGINE, buckets, (name,) if vllm is None else vllm)


def _info(name: str, text: str, *labels: str, vllm: tuple[str, ...] = ()) -> MetricDef:
    return MetricDef(
        name, "gauge", f"{text} Always 1; the facts are in the labels.", labels, (), vllm
    )


METRICS: tuple[MetricDef, ...] = (
    # the state at an engine's last step
    _gauge("num_requests_running", "Running requests."),
    _gauge("num_requests_waiting", "Waiting requests."),
    _gauge(
        "kv_cache_usage_perc",
        "Fraction of the KV cache in use, 0 to 1.",
        vllm=("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    ),
    _gauge(
        "engine_sleep_state",
        "1 for the current sleep state of the engine, 0 for the others.",
        "sleep_state",
    ),
    _gauge("scheduler_extra", "Scheduler-specific gauges, by name.", "name", vllm=()),
    _gauge(
        PER_ADAPTER[0],
        "Running requests per LoRA adapter; absent for adapters without requests.",
        "lora_name",
        vllm=(),
    ),
    _gauge(PER_ADAPTER[1], "Waiting requests per LoRA adapter.", "lora_name", vllm=()),
    _gauge(
        "lora_requests_info",
        "Unix time of the last change in the set of active LoRA adapters; their names are in the labels.",
        "max_lora",
        "waiting_lora_adapters",
        "running_lora_adapters",
    ),
    # what engines did
    _counter("prompt_tokens", "Prompt tokens, including those from the prefix cache."),
    _counter("prompt_tokens_cached", "Prompt tokens served from the prefix cache."),
    _counter("generation_tokens", "Generated tokens."),
    _counter("request_success", "Finished requests, by finish reason.", "finished_reason"),
    _counter("num_preemptions", "Preemptions."),
    _counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache."),
    _counter("prefix_cache_hits", "Prompt tokens found in the prefix cache."),
    _counter(
        "external_prefix_cache_queries",
        "Prompt tokens beyond the prefix cache looked up in the KV connector.",
    ),
    _counter("external_prefix_cache_hits", "Prompt tokens found by the KV connector."),
    _counter("spec_decode_num_drafts", "Verified drafts."),
    _counter("spec_decode_num_draft_tokens", "Verified draft tokens."),
    _counter("spec_decode_num_accepted_tokens", "Accepted draft tokens."),
    _counter("steps", "Executed steps.", vllm=()),
    _counter("frames_dropped", "Frames from front ends that could not be decoded.", vllm=()),
    _counter("engine_deaths", "Engine failures.", vllm=()),
    _counter("engine_restarts", "Engine restarts.", vllm=()),
    _counter("requests_continued", "Requests resumed after the failure of their engine.", vllm=()),
    _counter(
        "tokens_recomputed", "Prompt and output tokens of resumed requests at the failure.", vllm=()
    ),
    _counter(
        "recovery_silence_seconds", "Seconds from engine failures until service resumed.", vllm=()
    ),
    _counter("scheduler_fallbacks", "Fallbacks to another scheduler.", vllm=()),
    _counter("kv_connector_fallbacks", "Fallbacks to another KV connector, or to none.", vllm=()),
    _counter("engine_replacements", "Planned replacements of running engines.", vllm=()),
    _counter("engine_takeovers", "Replacements of failed engines by standbys.", vllm=()),
    MetricDef("standby_engines", "gauge", "Standby engines, ready for failover.", ("model_name",)),
    MetricDef(
        "request_rejections",
        "counter",
        "Requests rejected by the front end, by reason.",
        ("model_name", "reason"),
    ),
    MetricDef(
        "ignored_request_fields",
        "counter",
        "Request fields and content parts without effect.",
        ("model_name",),
    ),
    # helpers of front ends, such as the check of grammars
    MetricDef("helper_jobs_waiting", "gauge", "Jobs waiting for a helper process.", HELPER),
    MetricDef("helper_jobs_running", "gauge", "Jobs running in helper processes.", HELPER),
    MetricDef("helper_jobs", "counter", "Finished jobs.", HELPER),
    MetricDef(
        "helper_busy_seconds", "counter", "Total run time of finished jobs in seconds.", HELPER
    ),
    MetricDef("helper_waiting_seconds", "counter", "Total queue time of jobs in seconds.", HELPER),
    MetricDef(
        "helper_timeouts", "counter", "Jobs that exceeded their time or memory limit.", HELPER
    ),
    MetricDef("helper_refusals", "counter", "Jobs rejected because the queue was full.", HELPER),
    MetricDef(
        "helper_restarts",
        "counter",
        "Jobs requeued behind short ones after exceeding their expected time.",
        HELPER,
    ),
    MetricDef("helper_cache_queries", "counter", "Lookups in the result cache.", HELPER),
    MetricDef("helper_cache_hits", "counter", "Hits in the result cache.", HELPER),
    MetricDef(
        "mm_cache_queries",
        "counter",
        "Lookups in the cache of processed images.",
        ("model_name",),
        vllm=("mm_cache_queries",),
    ),
    MetricDef(
        "mm_cache_hits",
        "counter",
        "Hits in the cache of processed images.",
        ("model_name",),
        vllm=("mm_cache_hits",),
    ),
    # how long it took
    _histogram(
        "time_to_first_token_seconds", FIRST_TOKEN_SECONDS, "Time from arrival to first token."
    ),
    _histogram(
        "inter_token_latency_seconds",
        TOKEN_SECONDS,
        "Time between consecutive tokens of a request.",
        vllm=("inter_token_latency_seconds", "time_per_output_token_seconds"),
    ),
    _histogram(
        "request_time_per_output_token_seconds",
        TOKEN_SECONDS,
        "Mean time per output token of a request, without the first.",
    ),
    _histogram(
        "e2e_request_latency_seconds", REQUEST_SECONDS, "Time from arrival to the end of a request."
    ),
    _histogram("request_queue_time_seconds", REQUEST_SECONDS, "Queue time of a request."),
    _histogram(
        "request_prefill_time_seconds",
        REQUEST_SECONDS,
        "Time from first scheduling to first token.",
    ),
    _histogram("request_decode_time_seconds", REQUEST_SECONDS, "Time from first to last token."),
    _histogram(
        "request_inference_time_seconds", REQUEST_SECONDS, "Sum of prefill and decode time."
    ),
    # how large it was
    _histogram("request_prompt_tokens", TOKENS, "Prompt tokens of a request."),
    _histogram("request_generation_tokens", TOKENS, "Generated tokens of a request."),
    _histogram(
        "request_max_num_generation_tokens", TOKENS, "Generated tokens of a request with n=1."
    ),
    _histogram("request_params_max_tokens", TOKENS, "max_tokens of requests that set it."),
    _histogram("request_params_n", SAMPLES, "n of a request."),
    _histogram(
        "iteration_tokens",
        STEP_TOKENS,
        "Prompt and generated tokens per step and front end.",
        vllm=("iteration_tokens_total",),
    ),
    # samples that a scheduler may report, one per step, under the same names in SchedulerStats.extra
    _histogram(
        "kv_block_lifetime_seconds",
        BLOCK_SECONDS,
        "Time from allocation to eviction of a KV block; sampled.",
    ),
    _histogram(
        "kv_block_idle_before_evict_seconds",
        BLOCK_SECONDS,
        "Time from last use to eviction of a KV block; sampled.",
    ),
    _histogram(
        "kv_block_reuse_gap_seconds",
        BLOCK_SECONDS,
        "Time between two uses of a cached KV block; sampled.",
    ),
    # facts
    _info("plugin_info", "A plugin in use.", "kind", "name", "distribution", "version"),
    _info(
        "cache_config_info",
        "The KV cache of all engines together.",
        *(
            "model_name",
            "block_size",
            "num_gpu_blocks",
            "gpu_memory_utilization",
            "enable_prefix_caching",
        ),
        "kv_cache_bytes",
        vllm=("cache_config_info",),
    ),
    _info(
        "engine_info",
        "The configuration in use.",
        *(
            "model_name",
            "architecture",
            "dtype",
            "quantization",
            "max_model_len",
            "enable_lora",
            "enforce_eager",
        ),
        *(
            "tensor_parallel_size",
            "pipeline_parallel_size",
            "data_parallel_size",
            "kv_connector",
            "context",
        ),
    ),
)

BY_NAME = {metric.name: metric for metric in METRICS}
SAMPLED = tuple(metric.name for metric in METRICS if metric.name.startswith("kv_block_"))


def exposed_names(metric: MetricDef, *, vllm_names: bool) -> tuple[str, ...]:
    """Full names of a metric, without the `_total` that the format appends to a counter's samples; ours first."""
    return (PREFIX + metric.name, *(VLLM_PREFIX + name for name in metric.vllm if vllm_names))


def metric_table(*, vllm_names: bool = False) -> list[tuple[str, str, tuple[str, ...], str]]:
    """Name as a query writes it, type, labels and help of every metric; with `vllm_names`, of the aliases too."""
    rows: list[tuple[str, str, tuple[str, ...], str]] = []
    for metric in METRICS:
        names = exposed_names(metric, vllm_names=vllm_names)
        for name in names:
            text = metric.help if name is names[0] else f"The same samples as {names[0]}."
            rows.append(
                (name + "_total" * (metric.type == "counter"), metric.type, metric.labels, text)
            )
    return rows
