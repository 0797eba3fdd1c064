"""The series of one engine, found once so that a record costs no look-up by label. Observer thread."""

from __future__ import annotations

from tenonry.stats import FinishedRequestStats, IterationStats, RecoveryStats, SchedulerStats
from tenonry_stat_logger_prometheus.adapters import AdapterSeries
from tenonry_stat_logger_prometheus.catalog import (
    FINISH_REASONS,
    MAX_EXTRAS,
    OTHER,
    PER_ADAPTER,
    SAMPLED,
    SLEEP_STATES,
)
from tenonry_stat_logger_prometheus.storage import Storage

GAUGES = (
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "scheduler_extra",
    *PER_ADAPTER,
    "lora_requests_info",
)


class EngineSeries:
    """Series of one engine's reports. `extra_names` is shared by all engines and bounds the names of extras."""

    def __init__(
        self, storage: Storage, engine_index: int, extra_names: set[str], max_loras: int = 0
    ) -> None:
        self._storage = storage
        self._adapters = AdapterSeries(storage, str(engine_index), max_loras) if max_loras else None
        self._engine = str(engine_index)
        self._extra_names = extra_names
        cell = storage.cell
        histogram = storage.histogram
        engine = self._engine
        self.running = cell("num_requests_running", engine)
        self.waiting = cell("num_requests_waiting", engine)
        self.kv_usage = cell("kv_cache_usage_perc", engine)
        self.prompt_tokens = cell("prompt_tokens", engine)
        self.cached_tokens = cell("prompt_tokens_cached", engine)
        self.generation_tokens = cell("generation_tokens", engine)
        self.finished = {
            reason: cell("request_success", engine, reason) for reason in FINISH_REASONS
        }
        self.preemptions = cell("num_preemptions", engine)
        self.queries = cell("prefix_cache_queries", engine)
        self.hits = cell("prefix_cache_hits", engine)
        self.external_queries = cell("external_prefix_cache_queries", engine)
        self.external_hits = cell("external_prefix_cache_hits", engine)
        self.drafts = cell("spec_decode_num_drafts", engine)
        self.draft_tokens = cell("spec_decode_num_draft_tokens", engine)
        self.accepted_tokens = cell("spec_decode_num_accepted_tokens", engine)
        self.steps = cell("steps", engine)
        self.frames_dropped = cell("frames_dropped", engine)
        self.deaths = cell("engine_deaths", engine)
        self.restarts = cell("engine_restarts", engine)
        self.continued = cell("requests_continued", engine)
        self.recomputed = cell("tokens_recomputed", engine)
        self.silence = cell("recovery_silence_seconds", engine)
        self.fallbacks = cell("scheduler_fallbacks", engine)
        self.connector_fallbacks = cell("kv_connector_fallbacks", engine)
        self.replacements = cell("engine_replacements", engine)
        self.takeovers = cell("engine_takeovers", engine)
        self.ttft = histogram("time_to_first_token_seconds", engine)
        self.itl = histogram("inter_token_latency_seconds", engine)
        self.tpot = histogram("request_time_per_output_token_seconds", engine)
        self.e2e = histogram("e2e_request_latency_seconds", engine)
        self.queue = histogram("request_queue_time_seconds", engine)
        self.prefill = histogram("request_prefill_time_seconds", engine)
        self.decode = histogram("request_decode_time_seconds", engine)
        self.inference = histogram("request_inference_time_seconds", engine)
        self.request_prompt = histogram("request_prompt_tokens", engine)
        self.request_generation = histogram("request_generation_tokens", engine)
        self.request_max_generation = histogram("request_max_num_generation_tokens", engine)
        self.max_tokens = histogram("request_params_max_tokens", engine)
        self.n = histogram("request_params_n", engine)
        self.iteration_tokens = histogram("iteration_tokens", engine)
        self.sampled = {name: histogram(name, engine) for name in SAMPLED}

    def add_scheduler(self, stats: SchedulerStats) -> None:
        """Record the state after a step, and the counts since the engine's previous record."""
        self.running.value = stats.num_running
        self.waiting.value = stats.num_waiting
        self.kv_usage.value = stats.kv_cache_usage
        self.queries.value += stats.prefix_cache_queries
        self.hits.value += stats.prefix_cache_hits
        self.external_queries.value += stats.external_prefix_cache_queries
        self.external_hits.value += stats.external_prefix_cache_hits
        self.preemptions.value += stats.num_preemptions
        self.drafts.value += stats.num_drafts
        self.draft_tokens.value += stats.num_draft_tokens
        self.accepted_tokens.value += stats.num_accepted_tokens
        self.steps.value += stats.num_steps
        self.frames_dropped.value += stats.frames_dropped
        extra = stats.extra
        if self._adapters is not None:
            extra = self._adapters.take(extra)
        if extra:
            self._add_extra(extra)

    def _add_extra(self, extra: dict[str, float]) -> None:
        for name, value in extra.items():
            if name in self.sampled:
                self.sampled[name].observe(value)
            elif name in self._extra_names or len(self._extra_names) < MAX_EXTRAS:
                self._extra_names.add(name)
                self._storage.cell("scheduler_extra", self._engine, name).value = value

    def add_iteration(self, stats: IterationStats) -> None:
        """Add the counts of an engine's frames received by a front end."""
        self.prompt_tokens.value += stats.num_prompt_tokens
        self.cached_tokens.value += stats.num_cached_tokens
        self.generation_tokens.value += stats.num_generation_tokens
        self.iteration_tokens.observe_many(stats.step_tokens)
        self.ttft.observe_many(stats.ttft_s)
        self.itl.observe_many(stats.inter_token_latency_s)
        if stats.finished:
            self._add_finished(stats.finished)

    def add_recovery(self, stats: RecoveryStats) -> None:
        """Add the deaths and restarts of the engine."""
        self.deaths.value += stats.deaths
        self.restarts.value += stats.restarts
        self.continued.value += stats.requests_continued
        self.recomputed.value += stats.tokens_recomputed
        self.silence.value += stats.silence_s
        self.fallbacks.value += stats.fallbacks
        self.connector_fallbacks.value += stats.connector_fallbacks
        self.replacements.value += stats.replacements
        self.takeovers.value += stats.takeovers
        if stats.standbys is not None:
            self._storage.cell("standby_engines").value = stats.standbys

    def _add_finished(self, requests: list[FinishedRequestStats]) -> None:
        for request in requests:
            reason = request.finish_reason
            self.finished[reason if reason in self.finished else OTHER].value += 1
        self.e2e.observe_many([each.e2e_latency_s for each in requests])
        self.queue.observe_many([each.queued_s for each in requests])
        self.request_prompt.observe_many([each.num_prompt_tokens for each in requests])
        self.request_generation.observe_many([each.num_generation_tokens for each in requests])
        self.n.observe_many([each.n for each in requests])
        self.request_max_generation.observe_many(
            [each.num_generation_tokens for each in requests if each.n == 1]
        )
        self.max_tokens.observe_many(
            [each.max_tokens for each in requests if each.max_tokens is not None]
        )
        # A request that never got a token had no prefill to time.
        timed = [each for each in requests if each.ttft_s is not None]
        self.prefill.observe_many([each.prefill_s for each in timed])
        self.decode.observe_many([each.decode_s for each in timed])
        self.inference.observe_many([each.prefill_s + each.decode_s for each in timed])
        # Over all samples, which decode side by side.
        self.tpot.observe_many(
            [
                each.decode_s * each.n / (each.num_generation_tokens - each.n)
                for each in requests
                if each.num_generation_tokens > each.n
            ]
        )

    def set_sleep_state(self, level: int) -> None:
        """Mark the state of a level: 0 awake, 1 weights offloaded, 2 everything discarded."""
        for index, state in enumerate(SLEEP_STATES):
            self._storage.cell("engine_sleep_state", self._engine, state).value = float(
                index == level
            )

    def forget_state(self) -> None:
        """Remove the gauges of a living engine; its counters stay, so that sums over time stay right."""
        for name in GAUGES:
            self._storage.remove(name, self._engine)
