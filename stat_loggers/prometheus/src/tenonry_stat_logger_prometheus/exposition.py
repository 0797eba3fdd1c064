"""From stored numbers to metric families: read once for a scrape, then yielded under our names and, as the same
samples, under the names that other dashboards use. Runs on the thread that answers a scrape; loads prometheus_client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from tenonry_stat_logger_prometheus.catalog import exposed_names
from tenonry_stat_logger_prometheus.storage import Labels, Reading

INFINITY = float("inf")

# Every Prometheus server reads this format. OpenMetrics is not offered: prometheus_client writes underscores for the
# colons of our names there, unless the scraper requests another escaping.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StatsCollector(Collector):
    """Yields one family per name. `read` returns the model's name and the readings, all of one instant."""

    def __init__(self, read: Callable[[], tuple[str, list[Reading]]], *, vllm_names: bool) -> None:
        self._read = read
        self._vllm_names = vllm_names

    def collect(self) -> Iterator[Metric]:
        model_name, readings = self._read()
        for reading in readings:
            ours, *aliases = exposed_names(reading.metric, vllm_names=self._vllm_names)
            family = make_family(ours, reading, model_name)
            yield family
            for alias in aliases:
                yield renamed(family, alias)


def make_family(name: str, reading: Reading, model_name: str) -> Metric:
    """Build the family of one metric, with a sample for each of its series."""
    metric = reading.metric

    def with_model(labels: Labels) -> Labels:
        return (model_name, *labels) if "model_name" in metric.labels else labels

    if metric.type == "histogram":
        family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
        bounds = [str(floatToGoString(bound)) for bound in (*metric.buckets, INFINITY)]  # type: ignore[no-untyped-call]
        for labels, counts, total in reading.histograms:
            family.add_metric(with_model(labels), list(zip(bounds, counts, strict=True)), total)
        return family
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    simple = kind(name, metric.help, labels=metric.labels)
    for labels, value in reading.values:
        simple.add_metric(with_model(labels), value)
    return simple


def renamed(family: Metric, name: str) -> Metric:
    """Make a family of another name that holds the same samples."""
    alias = Metric(name, f"The same samples as {family.name}.", family.type)
    start = len(family.name)
    alias.samples = [sample._replace(name=name + sample.name[start:]) for sample in family.samples]
    return alias


def make_registry(collector: StatsCollector, *, process_metrics: bool) -> CollectorRegistry:
    """Make a private registry; the process-wide default one belongs to the application."""
    registry = CollectorRegistry()
    registry.register(collector)
    if process_metrics:
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
    return registry


def render(registry: CollectorRegistry) -> tuple[bytes, str]:
    """Return the body and the content type of an answer to a scrape."""
    return generate_latest(registry), CONTENT_TYPE
