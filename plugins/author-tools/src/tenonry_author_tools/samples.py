"""Samples of the Prometheus text format, and what changed between two looks at a server. Command line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tenonry.errors import LaunchError

PREFIX = "tenonry:"
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
HISTOGRAMS = {
    "TTFT": "time_to_first_token_seconds",
    "ITL": "inter_token_latency_seconds",
    "end to end": "e2e_request_latency_seconds",
    "queue": "request_queue_time_seconds",
}


class Sample(NamedTuple):
    """One line of an exposition. `name`: without the project's prefix."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(text: str) -> list[Sample]:
    """Samples of this project, without their aliases. Raises LaunchError for text in another format."""
    try:
        return [
            Sample(each.name.removeprefix(PREFIX), each.labels, each.value)
            for family in text_string_to_metric_families(text)
            for each in family.samples
            if each.name.startswith(PREFIX)
        ]
    except (ValueError, LookupError) as error:
        raise LaunchError(f"the metrics of the server cannot be read: {error}") from None


def total(samples: list[Sample], name: str) -> float:
    """Sum of a metric over engines and labels."""
    return sum(each.value for each in samples if each.name == name)


def summary(before: list[Sample], now: list[Sample], seconds: float) -> dict[str, Any]:
    """State of a server now, and rates and percentiles of the time between two looks."""

    def grown(name: str) -> float:
        return max(0.0, total(now, name) - total(before, name))

    seconds = max(seconds, 1e-9)
    usages = [each.value for each in now if each.name == "kv_cache_usage_perc"]
    queries = grown("prefix_cache_queries_total")
    infos = [each.labels for each in now if each.name == "plugin_info"]
    models = {each.labels["model_name"] for each in now if "model_name" in each.labels}
    return {
        "model": ", ".join(sorted(models)),
        "running": total(now, "num_requests_running"),
        "waiting": total(now, "num_requests_waiting"),
        "prompt_tokens_per_s": grown("prompt_tokens_total") / seconds,
        "output_tokens_per_s": grown("generation_tokens_total") / seconds,
        "requests_per_s": grown("request_success_total") / seconds,
        "kv_cache_usage": sum(usages) / len(usages) if usages else None,
        "prefix_cache_hits": grown("prefix_cache_hits_total") / queries if queries else None,
        "preemptions": total(now, "num_preemptions_total"),
        "latency_s": {
            label: percentiles(buckets(before, name), buckets(now, name))
            for label, name in HISTOGRAMS.items()
        },
        "plugins": sorted({_plugin(labels) for labels in infos}),
    }


def _plugin(labels: Mapping[str, str]) -> str:
    kind, name = labels.get("kind", "?"), labels.get("name", "?")
    return f"{kind} {name} {labels.get('version', '')}".rstrip()


def buckets(samples: list[Sample], name: str) -> dict[float, float]:
    """Cumulative counts of a histogram by upper bound, over all engines."""
    found: dict[float, float] = {}
    for each in samples:
        if each.name == f"{name}_bucket":
            bound = float(each.labels["le"])
            found[bound] = found.get(bound, 0.0) + each.value
    return found


def percentiles(
    before: Mapping[float, float], now: Mapping[float, float]
) -> dict[str, float | None]:
    """Percentiles of what was observed between two looks, linear within a bucket; None without observations."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(now.items())}
    if min(counts.values(), default=0.0) < 0:  # the server restarted: all is new
        counts = dict(sorted(now.items()))
    return {name: _quantile(counts, share) for name, share in QUANTILES.items()}


def _quantile(counts: Mapping[float, float], share: float) -> float | None:
    wanted = share * max(counts.values(), default=0.0)
    if not wanted:
        return None
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= wanted:
            part = (wanted - below) / (count - below)
            return low if math.isinf(bound) else low + part * (bound - low)
        low, below = bound, count
    return low
