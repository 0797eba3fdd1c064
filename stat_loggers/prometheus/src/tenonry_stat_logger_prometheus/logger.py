"""The stat logger `prometheus`: keeps the engines' numbers and renders them as metrics. Records come on the observer
thread of one process; `render` may be called on any thread of it. prometheus_client is loaded when it is built.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord
from tenonry_helper_pool.stats import HelperStats
from tenonry_stat_logger_prometheus.catalog import BY_NAME, OTHER, REJECTION_REASONS
from tenonry_stat_logger_prometheus.helpers import HelperSeries
from tenonry_stat_logger_prometheus.series import EngineSeries
from tenonry_stat_logger_prometheus.storage import Reading, Storage

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


DEFAULTS: dict[str, Any] = {
    name: field.default for name, field in EngineConfig.model_fields.items()
}  # of settings that `EngineInfo.usage` leaves out


class PrometheusOptions(PluginOptions):
    """Options of the prometheus stat logger."""

    vllm_names: bool = Field(True, description="Also expose metrics under their vllm: names.")
    process_metrics: bool = Field(
        True, description="Memory, CPU, open files and garbage collection of the process."
    )
    host: str = Field("127.0.0.1", description="Address for `port`.", min_length=1)
    port: int | None = Field(
        None, description="Port for scrapes without a server. 0 picks a free one.", ge=0, le=65535
    )


class PrometheusStatLogger(StatLogger):
    """Counters, gauges and histograms of all engines, in a private registry.

    More collectors may be added to `registry`. `port` is the port that answers scrapes, None without one. Raises
    ConfigError when the configured port is not available.
    """

    Options = PrometheusOptions

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        from tenonry_stat_logger_prometheus.exposition import StatsCollector, make_registry
        from tenonry_stat_logger_prometheus.http import MetricsServer

        options = (
            context.options
            if isinstance(context.options, PrometheusOptions)
            else PrometheusOptions()
        )
        # Guards everything below, for the length of one record or one copy.
        self._lock = threading.Lock()
        self._storage = Storage()
        self._engines: dict[int, EngineSeries] = {}
        self._extra_names: set[str] = set()
        self._sleep_level = 0
        self._model_name = (*context.config.served_model_name, context.config.model)[0]
        self._rejections = {
            reason: self._storage.cell("request_rejections", reason) for reason in REJECTION_REASONS
        }
        self._ignored_fields = self._storage.cell("ignored_request_fields")
        self._helpers = HelperSeries(self._storage)
        collector = StatsCollector(self._read, vllm_names=options.vllm_names)
        self.registry: CollectorRegistry = make_registry(
            collector, process_metrics=options.process_metrics
        )
        self._server = (
            MetricsServer(self.render, options.host, options.port)
            if options.port is not None
            else None
        )
        self.port = self._server.port if self._server else None

    def record(self, record: StatRecord) -> None:
        with self._lock:
            series = self._engines.get(record.engine_index)
            if series is None:
                series = self._add_engine(record.engine_index)
            if record.scheduler is not None:
                series.add_scheduler(record.scheduler)
            if record.iteration is not None:
                series.add_iteration(record.iteration)
            if record.recovery is not None:
                series.add_recovery(record.recovery)

    def render(self) -> tuple[bytes, str]:
        """Return the exposition and its content type: the body and header of an answer to GET /metrics.

        May be called on any thread; the engines' numbers are all of one instant.
        """
        from tenonry_stat_logger_prometheus.exposition import render

        return render(self.registry)

    def log_engine_initialized(self, info: EngineInfo) -> None:
        with self._lock:
            self._model_name = info.served_model_name
            for index in set(self._engines) - set(info.engine_indexes):
                self._engines.pop(index).forget_state()
            for index in info.engine_indexes:
                if index not in self._engines:
                    self._add_engine(index)
            self._set_facts(info)

    def record_sleep_state(self, sleeping: bool, level: int) -> None:
        with self._lock:
            self._sleep_level = level if sleeping else 0
            for series in self._engines.values():
                series.set_sleep_state(self._sleep_level)

    def record_rejection(self, reason: str) -> None:
        with self._lock:
            self._rejections[reason if reason in self._rejections else OTHER].value += 1

    def record_ignored_field(self) -> None:
        with self._lock:
            self._ignored_fields.value += 1

    def record_extra(self, record: object) -> None:
        if isinstance(record, HelperStats):
            with self._lock:
                self._helpers.take(record)

    def shutdown(self) -> None:
        if self._server is not None:
            self._server.close()

    def _read(self) -> tuple[str, list[Reading]]:
        with self._lock:
            return self._model_name, self._storage.read()

    def _add_engine(self, index: int) -> EngineSeries:
        max_loras = self.context.config.max_loras
        series = EngineSeries(self._storage, index, self._extra_names, max_loras)
        self._engines[index] = series
        series.set_sleep_state(self._sleep_level)
        return series

    def _set_facts(self, info: EngineInfo) -> None:
        storage = self._storage
        usage = DEFAULTS | info.usage
        facts = {
            **usage,
            "max_model_len": info.max_model_len,
            "enable_lora": usage.get("max_loras", 0) > 0,
            "kv_connector": (usage["kv_connector"] or {}).get("name"),
        }
        for name in ("plugin_info", "cache_config_info", "engine_info"):
            storage.remove(name)
        for plugin in info.plugins:
            storage.cell(
                "plugin_info", plugin.kind, plugin.name, plugin.distribution, plugin.version
            ).value = 1
        cache = (
            info.block_size,
            info.num_gpu_blocks,
            usage["gpu_memory_utilization"],
            usage["enable_prefix_caching"],
            usage["kv_cache_memory_bytes"],
        )
        storage.cell("cache_config_info", *map(_text, cache)).value = 1
        if info.usage:
            values = [facts.get(name) for name in BY_NAME["engine_info"].labels[1:]]
            storage.cell("engine_info", *map(_text, values)).value = 1


def _text(value: object) -> str:
    """Turn a fact into a label value: lower-case booleans, and an empty string, which means no label, for None."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
