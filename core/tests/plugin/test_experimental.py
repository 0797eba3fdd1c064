"""Third-party plugins on alpha kinds and points need consent; first-party and explicitly named ones do not."""

from __future__ import annotations

import os

import pytest

from tenonry.config import PluginChoice
from tenonry.config.sources import make_config
from tenonry.errors import PluginError
from tenonry.plugin.discovery import EXPERIMENTAL
from tenonry.plugin.hookspecs import hookimpl
from tenonry.plugin.kinds import EVERY_INSTALLED, KINDS
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import load_class
from tenonry.point import Point
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.kernel.site import Site

RECOVERY = """
from tenonry.interfaces.recovery import EngineRecovery

class Log(EngineRecovery):
    def on_death(self, index, death, requests): pass

class Fast: pass
"""
ALPHA = Point("acme.samplers", provider={"own": "acme-sampling"}, tier="alpha")
BETA = Point("acme.policies")
REFUSED = (
    r"^engine recovery 'log' \(acme_log:Log, acme-log 1\.0\) is a third-party plugin of the alpha point "
    r"tenonry\.engine_recoveries, .*; allow it with --allow-experimental-plugins, or leave it out$"
)


@pytest.fixture(autouse=True)
def _acme(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(EXPERIMENTAL, raising=False)
    for name in ("acme-log", "acme-sampling"):
        module = name.replace("-", "_")
        names = {"tenonry.engine_recoveries": {"log": f"{module}:Log"}} if "log" in name else {}
        points = {point.group: {module: f"{module}:Fast"} for point in (ALPHA, BETA)}
        site.install(name, entry_points=points | names, modules={f"{module}.py": RECOVERY})


def resolve(name: str = "log", manager: PluginManager | None = None, **settings: object) -> str:
    config = make_config({"model": "m", **settings})
    manager = manager or PluginManager(discover=False)
    record = manager.resolve("engine_recovery", PluginChoice(name=name), config)
    return load_class(record).__name__


def test_a_start_is_refused_with_plugin_distribution_point_tier_and_flag():
    with pytest.raises(PluginError, match=REFUSED):
        resolve()
    with pytest.raises(PluginError, match=REFUSED):
        PluginManager(discover=False).plan(fake_config(engine_recovery="log"))


@pytest.mark.parametrize("text", ["0", "false", "no"])
def test_a_variable_that_denies_allows_nothing(text, monkeypatch):
    monkeypatch.setenv(EXPERIMENTAL, text)
    with pytest.raises(PluginError, match=REFUSED):
        resolve()
    with pytest.raises(PluginError, match=r"alpha point acme\.samplers"):
        resolve_point(ALPHA, "acme_log")


def test_the_setting_allows_it_for_its_own_engine_alone():
    assert resolve(allow_experimental_plugins=True) == "Log"
    assert EXPERIMENTAL not in os.environ
    with pytest.raises(PluginError, match=REFUSED):
        resolve()


def test_owners_of_points_pass_the_consent_of_their_configuration():
    found, _ = resolve_point(ALPHA, "acme_log", allow_experimental=True)
    assert found.__name__ == "Fast"
    with pytest.raises(PluginError, match=r"alpha point acme\.samplers"):
        resolve_point(ALPHA, "acme_log")


@pytest.mark.parametrize("text", ["1", "true"])
def test_the_variable_allows_it(text, monkeypatch):
    monkeypatch.setenv(EXPERIMENTAL, text)
    assert resolve() == "Log"


def test_explicit_targets_need_no_consent(site):
    assert resolve("acme_log:Log") == "Log"
    assert resolve(f"{site.folder / 'acme_log.py'}:Log") == "Log"


def test_a_target_that_a_hook_module_chose_needs_it():
    class Chooser:
        @hookimpl
        def tenonry_get_engine_recovery(self, name, config):
            return "acme_log:Log" if name == "mine" else None

    manager = PluginManager(discover=False)
    manager.register(Chooser(), "chooser")
    with pytest.raises(PluginError, match=REFUSED):
        resolve("mine", manager)
    assert resolve("mine", manager, allow_experimental_plugins=True) == "Log"


def test_providers_of_the_point_need_no_consent():
    assert resolve_point(ALPHA, "acme_sampling")[1].distribution == "acme-sampling"
    with pytest.raises(PluginError, match=r"sampler 'acme_log' \(.*alpha point acme\.samplers"):
        resolve_point(ALPHA, "acme_log")


def test_other_tiers_need_none():
    assert resolve_point(BETA, "acme_log")[1].distribution == "acme-log"


def test_kinds_without_a_promise():
    alpha = {point.kind for point in (*KINDS.values(), *EVERY_INSTALLED) if point.tier == "alpha"}
    assert alpha == {"request_codec", "coordination", "engine_recovery", "step_observer"}
