"""The conformance suite of hook modules, and the hooks in a plugin manager without any other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import pytest
from tenonry.config import EngineConfig
from tenonry.errors import ConfigError
from tenonry.plugin.manager import PluginManager
from tenonry_testkit.hook_module import HookModuleContract

from auto_scheduler import plugin


class TestAutoScheduler(HookModuleContract):
    hook_module = plugin
    answers: ClassVar[Mapping[str, Sequence[str]]] = {"scheduler": [plugin.NAME]}


@pytest.fixture
def manager() -> PluginManager:
    made = PluginManager(discover=False)
    made.register(plugin, "auto-scheduler")
    return made


@pytest.mark.parametrize(("most", "target"), [(2, "StaticScheduler"), (8, "BatchingScheduler")])
def test_it_chooses_by_the_number_of_requests(
    manager: PluginManager, most: int, target: str
) -> None:
    config = EngineConfig(model="fake", scheduler=plugin.NAME, max_num_seqs=most)
    record = manager.resolve("scheduler", config.scheduler, config)
    assert record.target.endswith(target)


def test_other_names_are_left_to_others(manager: PluginManager) -> None:
    config = EngineConfig(model="fake", scheduler="static")
    assert manager.resolve("scheduler", config.scheduler, config).name == "static"


def test_too_many_requests_are_rejected(manager: PluginManager) -> None:
    config = EngineConfig(model="fake", scheduler=plugin.NAME, max_num_seqs=plugin.MOST + 1)
    with pytest.raises(ConfigError, match="max_num_seqs"):
        manager.call("tenonry_configured", config=config)
