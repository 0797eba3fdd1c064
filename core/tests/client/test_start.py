"""Common facts of front ends once engines are ready, and the record of the configuration in use (US-1)."""

from __future__ import annotations

from typing import Any

from tenonry.client.start import engine_info
from tenonry.config import EngineConfig, read
from tenonry.info import ModelInfo
from tenonry.messages import EngineFacts
from tenonry.plugin.plan import PluginPlan

MODEL = ModelInfo(
    name="m", path="", architecture="A", max_model_len=100, vocab_size=9, dtype="bfloat16"
)


def info(*, context: str = "library", **settings: Any) -> Any:
    config = read(EngineConfig, {"model": "m", **settings}, EngineConfig.model_fields)
    facts = [
        EngineFacts(
            index=index, epoch=1, num_gpu_blocks=10 + index, block_size=16, max_model_len=90
        )
        for index in (3, 1)
    ]
    return engine_info(config, MODEL, PluginPlan(()), facts, context)


def test_facts_of_several_engines():
    """HS-16."""
    known = info(served_model_name="mine")
    assert known.model == "m"
    assert known.served_model_name == "mine"
    assert known.max_model_len == 90
    assert known.block_size == 16
    assert (known.num_gpu_blocks, known.engine_indexes) == (24, (1, 3))
    assert info().served_model_name == "m"


def test_the_record_says_what_is_in_use():
    """US-1: the record contains non-default values, and the resolved value of `auto`."""
    usual = info().usage
    assert usual["dtype"] == "bfloat16"
    assert info(kv_cache_dtype="int8").usage["kv_cache_dtype"] == "int8"
    assert usual["architecture"] == "A"
    assert usual["block_size"] == 16
    assert usual["context"] == "library"
    changes: dict[str, Any] = {
        "gpu_memory_utilization": 0.5, "enable_prefix_caching": False, "enforce_eager": True,
        "tensor_parallel_size": 2, "pipeline_parallel_size": 3, "data_parallel_size": 4,
    }  # fmt: skip
    more = {"dtype": "float32", "kv_cache_memory_bytes": 5, "kv_connector": "k"}
    used = info(context="server", **changes, **more).usage
    expected = {
        **usual, **changes, **more, "kv_connector": {"name": "k"}, "context": "server",
    }  # fmt: skip
    assert used == expected


def test_the_record_has_no_options_of_plugins():
    """US-1: they may be secrets."""
    (used,) = [info(scheduler={"name": "mine", "options": {"key": "secret"}}).usage]
    assert used["scheduler"] == {"name": "mine"}
