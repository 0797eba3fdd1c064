"""Converts records of tenonry to vLLM's shape."""

from __future__ import annotations

import time

from tenonry import stats
from tenonry.outputs import FinishReason
from tenonry_vllm_shim import shapes


def scheduler_stats(found: stats.SchedulerStats) -> shapes.SchedulerStats:
    """Return the state of an engine. Counts are those since the previous record, as in vLLM."""
    external = None
    if found.external_prefix_cache_queries:
        external = shapes.PrefixCacheStats(
            found.external_prefix_cache_queries, found.external_prefix_cache_hits
        )
    drafts = None
    if found.num_drafts:
        drafts = shapes.SpecDecodingStats(
            found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens
        )
    return shapes.SchedulerStats(
        num_running_reqs=found.num_running,
        num_waiting_reqs=found.num_waiting,
        kv_cache_usage=found.kv_cache_usage,
        prefix_cache_stats=shapes.PrefixCacheStats(
            found.prefix_cache_queries, found.prefix_cache_hits
        ),
        connector_prefix_cache_stats=external,
        spec_decoding_stats=drafts,
    )


def iteration_stats(found: stats.IterationStats, preempted: int) -> shapes.IterationStats:
    """Return the statistics of one frame. `preempted`: preemptions since the previous record."""
    return shapes.IterationStats(
        iteration_timestamp=time.time(),
        num_generation_tokens=found.num_generation_tokens,
        num_prompt_tokens=found.num_prompt_tokens,
        num_preempted_reqs=preempted,
        finished_requests=[finished_stats(each) for each in found.finished],
        max_num_generation_tokens_iter=[each.num_generation_tokens for each in found.finished],
        n_params_iter=[each.n for each in found.finished],
        time_to_first_tokens_iter=list(found.ttft_s),
        inter_token_latencies_iter=list(found.inter_token_latency_s),
    )


def finished_stats(found: stats.FinishedRequestStats) -> shapes.FinishedRequestStats:
    """Return one request that ended."""
    after_first = found.num_generation_tokens - 1
    return shapes.FinishedRequestStats(
        finish_reason=FinishReason[found.finish_reason.upper()],
        e2e_latency=found.e2e_latency_s,
        num_prompt_tokens=found.num_prompt_tokens,
        num_generation_tokens=found.num_generation_tokens,
        max_tokens_param=found.max_tokens,
        queued_time=found.queued_s,
        prefill_time=found.prefill_s,
        inference_time=found.prefill_s + found.decode_s,
        decode_time=found.decode_s,
        mean_time_per_output_token=found.decode_s / after_first if after_first > 0 else 0.0,
        num_cached_tokens=found.num_cached_tokens,
    )
