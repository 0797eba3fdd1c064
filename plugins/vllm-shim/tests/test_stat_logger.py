"""Stat loggers written for vLLM receive what they read, without vLLM."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, ClassVar

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, PluginError
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.plugin.checks import load_options
from tenonry.stats import FinishedRequestStats, IterationStats, SchedulerStats, StatRecord
from tenonry_testkit.stat_logger import StatLoggerContract
from tenonry_vllm_shim.load import STAT_LOGGERS, load_class
from tenonry_vllm_shim.shapes import SchedulerStats as VllmSchedulerStats
from tenonry_vllm_shim.stat_logger import VllmStatLogger, VllmStatLoggerOptions

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is not None, reason="vLLM is installed"
)


class TestContract(StatLoggerContract):
    stat_logger = "vllm"
    options: ClassVar[dict[str, Any]] = {"plugin": "shim_plugins:TokenCounter"}


def make(name: str) -> VllmStatLogger:
    options = VllmStatLoggerOptions.model_validate({"plugin": f"shim_plugins:{name}"})
    config = EngineConfig(model="demo", max_num_seqs=7)
    VllmStatLogger.check(config, options)
    return VllmStatLogger(StatLoggerContext(config, options=options))


@pytest.fixture
def built():
    load_class("shim_plugins:TokenCounter", STAT_LOGGERS)
    built = sys.modules["shim_plugins"].BUILT
    built.clear()
    return built


def info(*indexes: int) -> EngineInfo:
    return EngineInfo(
        model="demo", served_model_name="demo", max_model_len=64, num_gpu_blocks=9, block_size=4,
        engine_indexes=indexes,
    )  # fmt: skip


def test_it_reads_names_and_units_of_vllm(built):
    shim = make("TokenCounter")
    shim.log_engine_initialized(info(0, 1))
    finished = FinishedRequestStats(
        request_id="a", finish_reason="length", num_prompt_tokens=3, num_generation_tokens=5
    )
    iteration = IterationStats(
        num_prompt_tokens=3, num_generation_tokens=5, ttft_s=[0.25], finished=[finished]
    )
    scheduler = SchedulerStats(prefix_cache_queries=3, kv_cache_usage=0.5)
    shim.record(StatRecord(engine_index=1, time=1.0, scheduler=scheduler, iteration=iteration))
    shim.log()
    first, second = built
    assert (first.engine_index, second.engine_index) == (0, 1)
    assert (first.prompt_tokens, second.prompt_tokens, second.generation_tokens) == (0, 3, 5)
    assert second.first_tokens == [0.25]
    assert second.finished == [("length", 5)]
    assert second.queries == 3
    assert (second.max_num_seqs, second.blocks) == (7, 9)
    assert (first.initialized, first.logged, second.logged) == (1, 1, 1)


def test_a_class_that_aggregates_is_built_once(built):
    shim = make("Together")
    shim.log_engine_initialized(info(0, 1))
    for index in (0, 1):
        iteration = IterationStats(num_generation_tokens=2)
        shim.record(StatRecord(engine_index=index, time=1.0, iteration=iteration))
    [together] = built
    assert together.engine_indexes == [0, 1]
    assert together.generation_tokens == 4
    assert together.initialized == 1


def test_a_field_without_counterpart_is_named(built):
    shim = make("ReadsUnknown")
    with pytest.raises(AttributeError, match=r"no SchedulerStats\.current_wave; it has: .*num_run"):
        shim.record(StatRecord(engine_index=0, time=1.0, scheduler=SchedulerStats()))
    assert VllmSchedulerStats() == VllmSchedulerStats()


def test_no_stand_in_remains(built):
    make("TokenCounter")
    assert importlib.util.find_spec("vllm") is None
    assert not [name for name in sys.modules if name.partition(".")[0] == "vllm"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nowhere:Logger", "nowhere:Logger"),
        ("shim_plugins:Absent", "Absent"),
        ("shim_plugins:BUILT", "is a list; it must be a class"),
        ("shim_plugins:Norm", "has no method record"),
        ("unknown", "no stat logger of vLLM is called 'unknown'; installed: none"),
    ],
)
def test_a_wrong_class_is_refused(name, text):
    options = VllmStatLoggerOptions.model_validate({"plugin": name})
    with pytest.raises((ConfigError, PluginError), match=text):
        VllmStatLogger.check(EngineConfig(model="demo"), options)


def test_without_a_class_it_is_refused():
    record = PluginRecord("stat_logger", "vllm", "")
    with pytest.raises(PluginError, match="plugin"):
        load_options(record, VllmStatLogger)
