"""Expositions of the prometheus stat logger: facts, names and aliases, its registry, and consistent snapshots."""

from __future__ import annotations

import subprocess
import sys
import threading
from importlib.metadata import entry_points

import pytest
from prometheus_client import CollectorRegistry, Counter
from pydantic import ValidationError

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import TenonryError
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import load_class
from tenonry.stats import FinishedRequestStats, IterationStats, SchedulerStats, StatRecord
from tenonry_stat_logger_prometheus.catalog import BY_NAME, METRICS, exposed_names
from tenonry_stat_logger_prometheus.logger import PrometheusOptions, PrometheusStatLogger

FINISHED = FinishedRequestStats(
    request_id="r1",
    finish_reason="stop",
    num_prompt_tokens=40,
    num_generation_tokens=5,
    e2e_latency_s=3.0,
    ttft_s=1.0,
)
USAGE = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "block_size": 16,
    "kv_cache_memory_bytes": 1 << 20,
    "tensor_parallel_size": 2,
    "context": "library",
}


def record(engine=0, scheduler=None, iteration=None) -> StatRecord:
    return StatRecord(engine_index=engine, time=1.0, scheduler=scheduler, iteration=iteration)


def info(*indexes: int, **more) -> EngineInfo:
    facts = {
        "model": "/models/demo",
        "served_model_name": "demo",
        "max_model_len": 2048,
        "num_gpu_blocks": 512,
    }
    return EngineInfo(**facts, block_size=16, engine_indexes=indexes, **more)


class TestFacts:
    """US-1."""

    def test_plugins_and_configuration(self, make_logger, scrape):
        plugins = (
            PluginRecord("scheduler", "batching", "m:C", "tenonry-scheduler-batching", "0.1.0"),
            PluginRecord("executor", "uni", "m:D", "tenonry-executor-uniproc", "0.1.0"),
        )
        logger = make_logger()
        logger.log_engine_initialized(info(0, plugins=plugins, usage=USAGE))
        found = scrape(logger)
        assert found.labels("tenonry:plugin_info") == [
            {
                "kind": plugin.kind,
                "name": plugin.name,
                "distribution": plugin.distribution,
                "version": "0.1.0",
            }
            for plugin in plugins
        ]
        assert found.value("tenonry:plugin_info") == 2
        (cache,) = found.labels("vllm:cache_config_info")
        assert cache == {
            "model_name": "demo",
            "block_size": "16",
            "num_gpu_blocks": "512",
            "gpu_memory_utilization": "0.9",
            "enable_prefix_caching": "true",
            "kv_cache_bytes": "1048576",
        }
        (engine,) = found.labels("tenonry:engine_info")
        assert set(engine) == set(BY_NAME["engine_info"].labels)
        assert engine["architecture"] == "LlamaForCausalLM"
        assert engine["max_model_len"] == "2048"
        assert engine["tensor_parallel_size"] == "2"
        assert engine["enable_lora"] == "false"
        assert engine["kv_connector"] == ""
        assert engine["context"] == "library"

    def test_facts_are_replaced_whole(self, make_logger, scrape):
        logger = make_logger()
        logger.log_engine_initialized(
            info(0, plugins=(PluginRecord("worker", "torch", "", "d", "1"),), usage=USAGE)
        )
        logger.log_engine_initialized(info(0))
        found = scrape(logger)
        assert found.labels("tenonry:plugin_info") == found.labels("tenonry:engine_info") == []
        assert len(found.labels("tenonry:cache_config_info")) == 1

    def test_model_name_is_the_served_one(self, make_logger, scrape):
        assert self.model_names(scrape(make_logger("/models/x", ("chat", "other")))) == {"chat"}
        assert self.model_names(scrape(make_logger("/models/x"))) == {"/models/x"}
        logger = make_logger("/models/x")
        logger.record(record(scheduler=SchedulerStats()))
        logger.log_engine_initialized(info(0))
        assert self.model_names(scrape(logger)) == {"demo"}

    def model_names(self, found) -> set[str]:
        return {
            value for _, labels in found.samples for key, value in labels if key == "model_name"
        }


class TestNames:
    def test_vllm_names_can_be_switched_off(self, make_logger, scrape):
        with_aliases, without = make_logger(), make_logger(vllm_names=False)
        for logger in (with_aliases, without):
            logger.record(record(scheduler=SchedulerStats(num_running=1)))
        assert any(name.startswith("vllm:") for name in scrape(with_aliases).families)
        assert not any("vllm" in name for name in scrape(without).families)

    def test_every_alias_is_exposed_with_the_same_samples(self, make_logger, scrape):
        logger = make_logger()
        logger.log_engine_initialized(info(0, 1, usage=USAGE))
        logger.record(record(1, iteration=IterationStats(finished=[FINISHED])))
        families = scrape(logger).families
        for metric in METRICS:
            ours, *aliases = [families[name] for name in exposed_names(metric, vllm_names=True)]
            for alias in aliases:
                assert alias.type == ours.type == metric.type
                cut = [
                    [(s.name.removeprefix(f.name), s.labels, s.value) for s in f.samples]
                    for f in (ours, alias)
                ]
                assert cut[0] == cut[1]

    def test_colons_survive_and_the_type_is_plain_text(self, make_logger):
        body, content_type = make_logger().render()
        assert content_type == "text/plain; version=0.0.4; charset=utf-8"
        assert b"\ntenonry:request_rejections_total{" in body
        assert b"tenonry_" not in body


class TestRegistry:
    def test_two_loggers_do_not_share_anything(self, make_logger, scrape):
        first, second = make_logger(), make_logger()
        first.record(record(iteration=IterationStats(num_generation_tokens=5)))
        second.log_engine_initialized(info(0))
        assert scrape(second).value("tenonry:generation_tokens_total") == 0

    def test_process_metrics_are_optional(self, make_logger, scrape):
        assert {"process_cpu_seconds", "python_gc_collections", "python_info"} <= set(
            scrape(make_logger()).families
        )
        families = scrape(make_logger(process_metrics=False)).families
        assert all(name.startswith(("tenonry:", "vllm:")) for name in families)

    def test_others_may_add_collectors(self, make_logger, scrape):
        logger = make_logger()
        assert isinstance(logger.registry, CollectorRegistry)
        Counter("http_requests", "Requests.", registry=logger.registry).inc(3)
        assert scrape(logger).value("http_requests_total") == 3

    @pytest.mark.slow
    def test_render_is_consistent_while_records_come_in(self, make_logger, scrape):
        """Every exposition is of one instant: values raised by one record are never seen apart."""
        logger = make_logger(process_metrics=False)
        stop = threading.Event()

        def feed() -> None:
            while not stop.is_set():
                logger.record(record(iteration=IterationStats(finished=[FINISHED, FINISHED])))

        thread = threading.Thread(target=feed)
        thread.start()
        try:
            counts = []
            for _ in range(20):
                found = scrape(logger)
                names = (
                    "request_success_total",
                    "e2e_request_latency_seconds_count",
                    "request_params_n_sum",
                )
                (count,) = {
                    found.value(f"{prefix}{name}")
                    for name in names
                    for prefix in ("tenonry:", "vllm:")
                }
                counts.append(count)
        finally:
            stop.set()
            thread.join()
        assert counts == sorted(counts)
        assert counts[-1] > 0


class TestInterface:
    def test_options(self):
        assert PrometheusStatLogger.Options is PrometheusOptions
        for bad in ({"port": 65536}, {"port": -1}, {"host": ""}, {"vlm_names": True}):
            with pytest.raises(ValidationError):
                PrometheusStatLogger.Options.model_validate(bad)

    def test_kernel_finds_it_by_name_and_checks_its_options(self):
        manager, config = PluginManager(discover=False), EngineConfig(model="demo")
        (point,) = entry_points(group="tenonry.stat_loggers", name="prometheus")
        choice = PluginChoice(name=point.value, options={"vllm_names": "false"})
        entry = manager.resolve("stat_logger", choice, config)
        assert load_class(entry) is PrometheusStatLogger
        assert load_options(entry, PrometheusStatLogger) == PrometheusOptions(vllm_names=False)
        with pytest.raises(TenonryError, match=r"prometheus.*vlm_names"):
            manager.resolve(
                "stat_logger", PluginChoice(name=point.value, options={"vlm_names": True}), config
            )

    def test_context_without_options_means_defaults(self, scrape):
        logger = PrometheusStatLogger(StatLoggerContext(EngineConfig(model="demo")))
        assert "vllm:request_rejections" not in scrape(logger).families
        assert "tenonry:request_rejections" in scrape(logger).families
        assert logger.port is None
        logger.shutdown()

    @pytest.mark.integration
    def test_module_is_light(self):
        code = "import sys, tenonry_stat_logger_prometheus.logger; print(*(m.partition('.')[0] for m in sys.modules))"
        command = [sys.executable, "-P", "-c", code]
        loaded = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        assert "tenonry_stat_logger_prometheus" in loaded
        assert not {
            "prometheus_client",
            "http",
            "numpy",
            "torch",
            "transformers",
            "fastapi",
            "uvicorn",
        } & set(loaded)
