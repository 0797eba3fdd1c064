"""Numbers for stat loggers: append-only typed records. Made in engine and front end, read on an observer thread.

Fields are only ever added, with defaults. Times are seconds; a duration is always measured within one process.
"""

from __future__ import annotations

import msgspec


class SchedulerStats(msgspec.Struct, array_like=True, kw_only=True):
    """One engine's state after a step. `prefix_cache_*`, `num_preemptions`, `num_steps`, `frames_dropped`,
    `external_prefix_cache_*` (tokens looked up and found by the KV connector) and `num_drafts`, `num_draft_tokens`,
    `num_accepted_tokens` (times that tokens were drafted for a row, these tokens, and those that were right) count
    since the previous record.

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
    external_prefix_cache_queries: int = 0
    external_prefix_cache_hits: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


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
    """Statistics of an engine's frames in a front end. `num_generation_tokens` includes tokens in flight at an abort or
    behind a stop string, which are not delivered.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    ttft_s: list[float] = []
    inter_token_latency_s: list[float] = []
    finished: list[FinishedRequestStats] = []


class RecoveryStats(msgspec.Struct, kw_only=True):
    """Statistics of an engine that died, or was replaced. `tokens_recomputed`: prompts and delivered tokens of
    continued requests that had run; less is computed of those that another engine has in its prefix cache.
    `silence_s`: seconds from its death until it served again. `fallbacks`: its scheduler was replaced,
    `connector_fallbacks`: its KV connector. `replacements`: another one took its place. `takeovers`: one that stood by
    did, when it had died; `standbys`: those that stand by now, of all engines together.
    """

    deaths: int = 0
    restarts: int = 0
    requests_continued: int = 0
    tokens_recomputed: int = 0
    silence_s: float = 0.0
    fallbacks: int = 0
    replacements: int = 0
    takeovers: int = 0
    standbys: int | None = None
    connector_fallbacks: int = 0


class StatRecord(msgspec.Struct, kw_only=True):
    """One delivery to a stat logger: any part may be missing. `time` is the front end's monotonic clock."""

    engine_index: int
    time: float
    scheduler: SchedulerStats | None = None
    iteration: IterationStats | None = None
    recovery: RecoveryStats | None = None
