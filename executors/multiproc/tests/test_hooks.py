"""The hook module `mp`: the default executor of several ranks."""

from __future__ import annotations

from typing import Any

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.plugin.manager import PluginManager

pytest.importorskip("tenonry_executor_uniproc")


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({}, "uni"),
        ({"tensor_parallel_size": 1}, "uni"),
        ({"tensor_parallel_size": 2}, "mp"),
        ({"pipeline_parallel_size": "2"}, "mp"),
        ({"pipeline_parallel_size": 2, "executor": "mp"}, "mp"),
    ],
)
def test_several_ranks_need_several_processes(values: dict[str, Any], name: str):
    config = EngineConfig(model="m", **values)
    record = PluginManager().resolve("executor", config.executor, config)
    assert record.name == name


def test_an_executor_that_is_named_is_left_alone():
    config = EngineConfig(model="m", executor="uni", tensor_parallel_size=2)
    with pytest.raises(ConfigError, match=r"'uni' runs one rank.* = 2; use --executor mp"):
        PluginManager().resolve("executor", config.executor, config)
