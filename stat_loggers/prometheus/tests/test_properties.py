"""For any records: counters equal the sums of their inputs, and label values stay in their closed sets."""

from __future__ import annotations

import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenonry.info import EngineInfo
from tenonry.stats import FinishedRequestStats, IterationStats, SchedulerStats, StatRecord
from tenonry_stat_logger_prometheus.catalog import FINISH_REASONS, REJECTION_REASONS, SLEEP_STATES

INFO = EngineInfo(
    model="demo",
    served_model_name="demo",
    max_model_len=2048,
    num_gpu_blocks=512,
    block_size=16,
    engine_indexes=(0, 1, 2),
)

counts = st.integers(0, 10**6)
seconds = st.floats(0, 1e4)
requests = st.builds(
    FinishedRequestStats,
    request_id=st.text(max_size=8),
    finish_reason=st.one_of(st.sampled_from(FINISH_REASONS), st.text(max_size=8)),
    num_prompt_tokens=counts,
    num_generation_tokens=counts,
    e2e_latency_s=seconds,
    ttft_s=st.none() | seconds,
    queued_s=seconds,
    prefill_s=seconds,
    decode_s=seconds,
    max_tokens=st.none() | counts,
    n=st.integers(1, 200),
    tags=st.dictionaries(st.text(max_size=4), st.text(max_size=4) | seconds, max_size=2),
)
schedulers = st.builds(
    SchedulerStats,
    num_running=counts,
    num_waiting=counts,
    prefix_cache_queries=counts,
    prefix_cache_hits=counts,
    num_preemptions=counts,
    num_steps=counts,
    frames_dropped=counts,
    num_drafts=counts,
    num_draft_tokens=counts,
    num_accepted_tokens=counts,
    extra=st.dictionaries(st.text(max_size=6), st.floats(-10, 10), max_size=3),
)
iterations = st.builds(
    IterationStats,
    num_prompt_tokens=counts,
    num_cached_tokens=counts,
    num_generation_tokens=counts,
    ttft_s=st.lists(seconds, max_size=3),
    inter_token_latency_s=st.lists(seconds, max_size=5),
    finished=st.lists(requests, max_size=2),
)
records = st.lists(
    st.builds(
        StatRecord,
        engine_index=st.integers(0, 2),
        time=st.just(1.0),
        scheduler=st.none() | schedulers,
        iteration=st.none() | iterations,
    ),
    max_size=6,
)


@settings(max_examples=20, deadline=None)
@given(records)
@pytest.mark.slow
def test_counters_equal_sums_under_both_sets_of_names(make_plain, scrape, given_records):
    logger = make_plain()
    logger.log_engine_initialized(INFO)
    for one in given_records:
        logger.record(one)
    found = scrape(logger)
    iterating = [one.iteration for one in given_records if one.iteration]
    scheduling = [one.scheduler for one in given_records if one.scheduler]
    ended = [request for one in iterating for request in one.finished]
    expected = {
        "prompt_tokens_total": sum(one.num_prompt_tokens for one in iterating),
        "generation_tokens_total": sum(one.num_generation_tokens for one in iterating),
        "num_preemptions_total": sum(one.num_preemptions for one in scheduling),
        "prefix_cache_queries_total": sum(one.prefix_cache_queries for one in scheduling),
        "prefix_cache_hits_total": sum(one.prefix_cache_hits for one in scheduling),
        "spec_decode_num_drafts_total": sum(one.num_drafts for one in scheduling),
        "spec_decode_num_draft_tokens_total": sum(one.num_draft_tokens for one in scheduling),
        "spec_decode_num_accepted_tokens_total": sum(one.num_accepted_tokens for one in scheduling),
        "time_to_first_token_seconds_count": sum(len(one.ttft_s) for one in iterating),
        "inter_token_latency_seconds_count": sum(
            len(one.inter_token_latency_s) for one in iterating
        ),
        "inter_token_latency_seconds_sum": sum(sum(one.inter_token_latency_s) for one in iterating),
        "request_success_total": len(ended),
        "e2e_request_latency_seconds_sum": sum(request.e2e_latency_s for request in ended),
        "request_prompt_tokens_sum": sum(request.num_prompt_tokens for request in ended),
    }
    for name, value in expected.items():
        assert found.value(f"tenonry:{name}") == pytest.approx(value), name
        assert found.value(f"vllm:{name}") == found.value(f"tenonry:{name}"), name


@functools.cache
def series_at_start(make_plain, scrape):
    logger = make_plain()
    logger.log_engine_initialized(INFO)
    return scrape(logger).samples.keys()


@settings(max_examples=20, deadline=None)
@given(records, st.lists(st.text(max_size=6), max_size=3))
@pytest.mark.slow
def test_label_values_come_from_closed_sets(make_plain, scrape, given_records, reasons):
    """Whatever a request carries (id, tags, reasons), the number of series does not move."""
    logger = make_plain()
    logger.log_engine_initialized(INFO)
    before = series_at_start(make_plain, scrape)
    for one in given_records:
        logger.record(one)
    for reason in reasons:
        logger.record_rejection(reason)
    new = scrape(logger).samples.keys() - before
    assert {name for name, _ in new} <= {"tenonry:scheduler_extra"}
    allowed = {
        "finished_reason": FINISH_REASONS,
        "reason": REJECTION_REASONS,
        "sleep_state": SLEEP_STATES,
    }
    for _, labels in before:
        for key, value in labels:
            assert value in allowed.get(key, (value,))
