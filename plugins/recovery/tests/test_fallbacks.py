"""Replacements of plugins that ended engines (AF-26)."""

from __future__ import annotations

import pytest

from tenonry.config import EngineConfig
from tenonry.errors import ConfigError, PluginNotFound
from tenonry.plugin.manager import PluginManager
from tenonry_recovery.fallbacks import check_fallbacks, fallbacks_of
from tenonry_recovery.recovery import ResumeStreams
from tenonry_testkit.kernel.served import served_config

SCHEDULER = "tenonry_testkit.fakes:ReferenceScheduler"
CONNECTOR = "tenonry_testkit.fakes:MemoryConnector"


def chosen(**settings: str) -> tuple[EngineConfig, PluginManager]:
    values = {"model": "m", "scheduler": "mine", "kv_connector": "own", **settings}
    return EngineConfig.model_validate(values), PluginManager(discover=False)


def test_those_of_each_kind():
    assert fallbacks_of(*chosen()) == {}
    found = fallbacks_of(*chosen(fallback_scheduler=SCHEDULER, fallback_kv_connector=CONNECTOR))
    assert {kind: other and other.name for kind, other in found.items()} == {
        "scheduler": SCHEDULER, "kv_connector": CONNECTOR,
    }  # fmt: skip
    assert fallbacks_of(*chosen(fallback_kv_connector="off")) == {"kv_connector": None}


def test_off_is_the_name_of_no_scheduler():
    with pytest.raises(PluginNotFound, match="'off'"):
        fallbacks_of(*chosen(fallback_scheduler="off"))


def test_one_that_could_take_the_place_of_nothing_is_refused():
    config, _ = chosen(fallback_kv_connector="off")
    check_fallbacks(config)
    with pytest.raises(ConfigError, match="fallback_kv_connector=off: there is no KV connector"):
        check_fallbacks(config.replaced(kv_connector=None))


def test_engines_may_be_restarted_with_each_set_of_fallbacks():
    config = served_config(
        scheduler="mine",
        kv_connector="own",
        fallback_scheduler=SCHEDULER,
        fallback_kv_connector="off",
    )
    manager = PluginManager(discover=False)
    found = ResumeStreams.alternatives(config, manager)
    assert [
        (each.scheduler.name, each.kv_connector and each.kv_connector.name) for each in found
    ] == [(SCHEDULER, "own"), ("mine", None), (SCHEDULER, None)]
    assert ResumeStreams.alternatives(served_config(), manager) == []
