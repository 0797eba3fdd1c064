"""Numbers for stat loggers: append-only typed records. Made in engine and front end, read on an observer thread.

Fields are only ever added, with defaults. Times are seconds; a duration is always measured within one process.
"""

from __future__ import annotations

import msgspec


class SchedulerStats(msgspec.Struct, array_like=True, kw_only=True):
    """One engine's state after a step. `prefix_cache_*`, `num_preemptions`, `num_steps`, `frames_dropped`,
    `external_prefix_cache_*` (tokens looked up and found by the KV connector) and `num_drafts`, `num_draft_tokens`,
    `num_accepted_tokens` (drafts for a row, their tokens, and the accepted tokens) count since the previous record;
    `num_steps` counts calls of `schedule`.

    `extra` carries further numbers of the scheduler.
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
    """One finished request. Latencies in seconds; `decode_s` spans first to last token.

    `start_time`: the arrival in seconds since 1970, the origin of `e2e_latency_s`. `trace_headers`: headers of the
    caller.
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
    behind a stop string, which are not delivered. `ttft_s`: one per request, at its first token. `step_tokens`: tokens
    of each frame, with the prompts of the requests that it reports as scheduled.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    ttft_s: list[float] = []
    inter_token_latency_s: list[float] = []
    finished: list[FinishedRequestStats] = []
    step_tokens: list[int] = []


class RecoveryStats(msgspec.Struct, kw_only=True):
    """Statistics of an engine that died, or was replaced. `tokens_recomputed`: prompts and delivered tokens of resumed
    requests that had run; cached prefixes of another engine reduce the actual work. `silence_s`: seconds from its death
    until it served again. `fallbacks`: replacements of its scheduler, `connector_fallbacks`: of its KV connector.
    `replacements`: planned replacements. `takeovers`: replacements of a dead engine by a spare one; `standbys`: current
    number of all spare engines.
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
