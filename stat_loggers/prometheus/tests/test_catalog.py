"""The list of metrics: well formed, complete, and the same in the README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tenonry_stat_logger_prometheus import metric_table
from tenonry_stat_logger_prometheus.catalog import METRICS, TOKENS, exposed_names

README = Path(__file__).parents[1] / "README.md"

# The names that dashboards made for vLLM query, as its documentation and example dashboards give them.
VLLM_NAMES = (
    "num_requests_running",
    "num_requests_waiting",
    "lora_requests_info",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "request_success_total",
    "engine_sleep_state",
    "cache_config_info",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "time_per_output_token_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "iteration_tokens_total",
    "kv_block_lifetime_seconds",
    "kv_block_idle_before_evict_seconds",
    "kv_block_reuse_gap_seconds",
)


@pytest.mark.parametrize("name", VLLM_NAMES)
def test_vllm_name_exists(name):
    assert f"vllm:{name}" in {row[0] for row in metric_table(vllm_names=True)}


def test_table_lists_our_names_once():
    rows = metric_table()
    assert len(rows) == len(METRICS) == len({name for name, *_ in rows})
    assert all(name.startswith("tenonry:") for name, *_ in rows)
    assert (
        "tenonry:request_success_total",
        "counter",
        ("model_name", "engine", "finished_reason"),
    ) in {row[:3] for row in rows}


def test_table_with_aliases_keeps_type_and_labels():
    rows = {name: (kind, labels) for name, kind, labels, _ in metric_table(vllm_names=True)}
    assert len(rows) == len(metric_table(vllm_names=True))
    assert rows["vllm:request_queue_time_seconds"] == rows["tenonry:request_queue_time_seconds"]
    assert "vllm:plugin_info" not in rows


def test_names_follow_prometheus_conventions():
    for metric in METRICS:
        for name in exposed_names(metric, vllm_names=True):
            assert re.fullmatch(r"(tenonry|vllm):[a-z][a-z0-9_]*", name)
        assert not metric.name.endswith(("_total", "_count", "_sum", "_bucket"))
        assert metric.help.endswith((".", ". Always 1; the facts are in the labels."))
        assert "model_name" not in metric.labels[1:]


def test_buckets_rise_and_belong_to_histograms():
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.type == "histogram")
        assert list(metric.buckets) == sorted(set(metric.buckets))
    assert TOKENS[:4] == (1, 2, 5, 10)
    assert TOKENS[-1] == 1_000_000


def test_readme_lists_every_metric():
    listed = re.findall(
        r"^\| `(tenonry:\w+)` \| (\w+) \| (.*?) \| (.*) \|$",
        README.read_text("utf-8"),
        re.MULTILINE,
    )
    expected = [
        (name, kind, ", ".join(f"`{label}`" for label in labels), text)
        for name, kind, labels, text in metric_table()
    ]
    assert listed == expected
