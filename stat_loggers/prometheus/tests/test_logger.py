"""Counts of the prometheus stat logger by engine, read back by Prometheus's own parser."""

from __future__ import annotations

import msgspec
import pytest

from tenonry.info import EngineInfo
from tenonry.stats import (
    FinishedRequestStats,
    IterationStats,
    RecoveryStats,
    SchedulerStats,
    StatRecord,
)
from tenonry_stat_logger_prometheus.catalog import (
    MAX_EXTRAS,
    METRICS,
    PER_ADAPTER,
    REJECTION_REASONS,
    SLEEP_STATES,
)

FINISHED = FinishedRequestStats(
    request_id="r1",
    finish_reason="stop",
    num_prompt_tokens=40,
    num_generation_tokens=5,
    e2e_latency_s=3.0,
    ttft_s=1.0,
    queued_s=0.25,
    prefill_s=0.75,
    decode_s=2.0,
    max_tokens=100,
)


def record(engine=0, scheduler=None, iteration=None) -> StatRecord:
    return StatRecord(engine_index=engine, time=1.0, scheduler=scheduler, iteration=iteration)


def finished(*requests: FinishedRequestStats, engine=0) -> StatRecord:
    return record(engine, iteration=IterationStats(finished=list(requests)))


def info(*indexes: int) -> EngineInfo:
    facts = {
        "model": "/models/demo",
        "served_model_name": "demo",
        "max_model_len": 2048,
        "num_gpu_blocks": 512,
    }
    return EngineInfo(**facts, block_size=16, engine_indexes=indexes)


class TestNumbers:
    """SL-1."""

    def test_scheduler_stats(self, make_logger, scrape):
        logger = make_logger()
        stats = SchedulerStats(
            num_running=3,
            num_waiting=7,
            kv_cache_usage=0.5,
            prefix_cache_queries=100,
            prefix_cache_hits=60,
            num_preemptions=2,
            num_steps=4,
            frames_dropped=1,
            extra={"queue_age_s": 1.5},
        )
        for _ in range(2):
            logger.record(record(scheduler=stats))
        found = scrape(logger)
        assert found.value("tenonry:num_requests_running") == 3
        assert found.value("tenonry:num_requests_waiting") == 7
        assert found.value("tenonry:kv_cache_usage_perc") == 0.5
        assert found.value("vllm:gpu_cache_usage_perc") == 0.5
        assert found.value("tenonry:prefix_cache_queries_total") == 200
        assert found.value("vllm:prefix_cache_hits_total") == 120
        assert found.value("vllm:num_preemptions_total") == 4
        assert found.value("tenonry:steps_total") == 8
        assert found.value("tenonry:frames_dropped_total") == 2
        assert found.value("tenonry:scheduler_extra", name="queue_age_s") == 1.5

    def test_iteration_stats(self, make_logger, scrape):
        logger = make_logger()
        stats = IterationStats(
            num_prompt_tokens=10,
            num_cached_tokens=4,
            num_generation_tokens=3,
            ttft_s=[0.02, 0.2],
            inter_token_latency_s=[0.01, 0.04, 0.0101],
            step_tokens=[11, 2],
        )
        logger.record(record(iteration=stats))
        found = scrape(logger)
        assert found.value("vllm:prompt_tokens_total") == 10
        assert found.value("vllm:prompt_tokens_cached_total") == 4
        assert found.value("vllm:generation_tokens_total") == 3
        assert found.value("vllm:iteration_tokens_total_sum") == 13
        assert found.value("vllm:iteration_tokens_total_count") == 2
        assert found.value("tenonry:time_to_first_token_seconds_count") == 2
        assert found.value("tenonry:time_to_first_token_seconds_bucket", le="0.025") == 1
        assert found.value("vllm:inter_token_latency_seconds_bucket", le="0.01") == 1
        assert found.value("vllm:time_per_output_token_seconds_sum") == pytest.approx(0.0601)

    def test_what_followed_a_death(self, make_logger, scrape):
        logger = make_logger()
        for stats in (
            RecoveryStats(deaths=1),
            RecoveryStats(requests_continued=16, tokens_recomputed=400),
            RecoveryStats(restarts=1, silence_s=2.5, fallbacks=1, replacements=3),
            RecoveryStats(takeovers=2, connector_fallbacks=5),
            RecoveryStats(standbys=4),
            RecoveryStats(standbys=3),
        ):
            logger.record(StatRecord(engine_index=0, time=1.0, recovery=stats))
        found = scrape(logger)
        assert found.value("tenonry:engine_deaths_total") == 1
        assert found.value("tenonry:engine_restarts_total") == 1
        assert found.value("tenonry:requests_continued_total") == 16
        assert found.value("tenonry:tokens_recomputed_total") == 400
        assert found.value("tenonry:recovery_silence_seconds_total") == 2.5
        assert found.value("tenonry:scheduler_fallbacks_total") == 1
        assert found.value("tenonry:kv_connector_fallbacks_total") == 5
        assert found.value("tenonry:engine_replacements_total") == 3
        assert found.value("tenonry:engine_takeovers_total") == 2
        assert found.value("tenonry:standby_engines") == 3

    def test_finished_request(self, make_logger, scrape):
        logger = make_logger()
        logger.record(finished(FINISHED))
        found = scrape(logger)
        sums = {
            "e2e_request_latency_seconds": 3.0,
            "request_queue_time_seconds": 0.25,
            "request_prefill_time_seconds": 0.75,
            "request_decode_time_seconds": 2.0,
            "request_inference_time_seconds": 2.75,
            "request_time_per_output_token_seconds": 0.5,
            "request_prompt_tokens": 40,
            "request_generation_tokens": 5,
            "request_max_num_generation_tokens": 5,
            "request_params_max_tokens": 100,
            "request_params_n": 1,
        }
        for name, total in sums.items():
            assert found.value(f"vllm:{name}_sum") == total, name
            assert found.value(f"tenonry:{name}_count") == 1, name
        assert found.value("tenonry:request_success_total", finished_reason="stop") == 1
        assert (
            found.value("tenonry:time_to_first_token_seconds_count") == 0
        )  # counted when it came, in ttft_s

    def test_request_that_never_ran_has_no_prefill(self, make_logger, scrape):
        logger = make_logger()
        aborted = FinishedRequestStats(
            request_id="r",
            finish_reason="abort",
            num_prompt_tokens=5,
            num_generation_tokens=0,
            queued_s=9.0,
            n=2,
        )
        logger.record(finished(aborted))
        found = scrape(logger)
        assert found.value("tenonry:request_success_total", finished_reason="abort") == 1
        assert found.value("tenonry:request_queue_time_seconds_sum") == 9
        for name in (
            "prefill_time_seconds",
            "decode_time_seconds",
            "time_per_output_token_seconds",
        ):
            assert found.value(f"tenonry:request_{name}_count") == 0
        assert found.value("tenonry:request_params_max_tokens_count") == 0
        assert found.value("tenonry:request_max_num_generation_tokens_count") == 0  # n = 2

    def test_time_per_token_of_several_samples(self, make_logger, scrape):
        """Two concurrent samples of five tokens each in two seconds: half a second per token, as for one."""
        logger = make_logger()
        logger.record(finished(msgspec.structs.replace(FINISHED, n=2, num_generation_tokens=10)))
        assert scrape(logger).value("tenonry:request_time_per_output_token_seconds_sum") == 0.5

    def test_sampled_extras_are_histograms(self, make_logger, scrape):
        logger = make_logger()
        logger.record(
            record(scheduler=SchedulerStats(extra={"kv_block_lifetime_seconds": 4.0, "mine": 1.0}))
        )
        logger.record(record(scheduler=SchedulerStats(extra={"mine": 2.0})))
        found = scrape(logger)
        assert found.value("vllm:kv_block_lifetime_seconds_bucket", le="5.0") == 1
        assert found.value("vllm:kv_block_lifetime_seconds_count") == 1
        assert [labels["name"] for labels in found.labels("tenonry:scheduler_extra")] == ["mine"]

    def test_rejections(self, make_logger, scrape):
        logger = make_logger()
        for reason in ("queue_full", "queue_full", "draining", "surprise"):
            logger.record_rejection(reason)
        found = scrape(logger)
        counted = {
            reason: found.value("tenonry:request_rejections_total", reason=reason)
            for reason in REJECTION_REASONS
        }
        assert counted == {"queue_full": 2, "invalid": 0, "draining": 1, "other": 1}

    def test_ignored_fields(self, make_logger, scrape):
        logger = make_logger()
        assert scrape(logger).value("tenonry:ignored_request_fields_total") == 0
        for _ in range(3):
            logger.record_ignored_field()
        assert scrape(logger).value("tenonry:ignored_request_fields_total") == 3


# They come with what they count.
LATER = {"scheduler_extra", *PER_ADAPTER, "lora_requests_info"}


class TestEngines:
    def test_series_exist_from_the_start(self, make_logger, scrape):
        """A counter that appears with its first event hides that event from rate()."""
        logger = make_logger()
        logger.log_engine_initialized(info(0, 1))
        found = scrape(logger)
        for metric in METRICS:
            if metric.labels[:2] == ("model_name", "engine") and metric.name not in LATER:
                suffix = {"counter": "_total", "gauge": "", "histogram": "_count"}[metric.type]
                engines = {
                    labels["engine"] for labels in found.labels(f"tenonry:{metric.name}{suffix}")
                }
                assert engines == {"0", "1"}, metric.name

    def test_engines_are_kept_apart(self, make_logger, scrape):
        logger = make_logger()
        logger.record(
            record(0, SchedulerStats(num_running=1), IterationStats(num_generation_tokens=5))
        )
        logger.record(
            record(1, SchedulerStats(num_running=2), IterationStats(num_generation_tokens=6))
        )
        found = scrape(logger)
        assert found.value("tenonry:num_requests_running", engine="1") == 2
        assert found.value("vllm:generation_tokens_total", engine="0") == 5
        assert found.value("vllm:generation_tokens_total") == 11

    def test_engine_that_is_gone_loses_its_gauges_and_keeps_its_counters(self, make_logger, scrape):
        logger = make_logger()
        logger.log_engine_initialized(info(0, 1))
        logger.record(
            record(
                1,
                SchedulerStats(num_running=2, extra={"x": 1.0}),
                IterationStats(num_generation_tokens=6),
            )
        )
        logger.log_engine_initialized(info(0))
        found = scrape(logger)
        assert [labels["engine"] for labels in found.labels("tenonry:num_requests_running")] == [
            "0"
        ]
        assert found.labels("tenonry:scheduler_extra") == []
        assert found.value("tenonry:generation_tokens_total", engine="1") == 6
        logger.log_engine_initialized(info(0, 1))
        logger.record(
            record(1, SchedulerStats(num_running=1), IterationStats(num_generation_tokens=1))
        )
        assert scrape(logger).value("tenonry:generation_tokens_total", engine="1") == 7

    def test_sleep_state(self, make_logger, scrape):
        logger = make_logger()
        logger.log_engine_initialized(info(0, 1))

        def states() -> dict[str, float]:
            found = scrape(logger)
            return {
                state: found.value("vllm:engine_sleep_state", sleep_state=state)
                for state in SLEEP_STATES
            }

        assert states() == {"awake": 2, "weights_offloaded": 0, "discard_all": 0}
        logger.record_sleep_state(sleeping=True, level=1)
        assert states() == {"awake": 0, "weights_offloaded": 2, "discard_all": 0}
        logger.record_sleep_state(sleeping=True, level=2)
        assert states() == {"awake": 0, "weights_offloaded": 0, "discard_all": 2}
        logger.record_sleep_state(sleeping=False, level=0)
        assert states() == {"awake": 2, "weights_offloaded": 0, "discard_all": 0}


def test_extras_are_bounded_over_all_engines(make_logger, scrape):
    logger = make_logger()
    for engine in range(2):
        for index in range(3 * MAX_EXTRAS):
            logger.record(record(engine, SchedulerStats(extra={f"n{index}": 1.0})))
    names = {labels["name"] for labels in scrape(logger).labels("tenonry:scheduler_extra")}
    assert names == {f"n{index}" for index in range(MAX_EXTRAS)}
