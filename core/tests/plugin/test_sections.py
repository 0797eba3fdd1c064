"""Settings of chosen plugins: their owners, and what is refused at the start."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import ConfigError, PluginIncompatible, RequestError
from tenonry.info import PluginRecord
from tenonry.interfaces.request_check import RequestLimits
from tenonry.plugin.discovery import EXCLUDED
from tenonry.plugin.manager import PluginManager, part_settings, settings_of
from tenonry.plugin.plan import PluginPlan
from tenonry_testkit.kernel.engine import fake_config
from tenonry_testkit.kernel.plugins import STAT_LOGGER

SETTINGS = """
from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings

class Lanes(PluginSettings):
    num_lanes: int = setting({default}, ge=1)
    lane_key: str = setting("", repr=False)

Mine.Settings = Lanes
"""
CHECK = """
from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginSettings

class Tenants(PluginSettings):
    blocked_tenant: str = ""

def check(request, limits):
    if request == limits.config.section(Tenants).blocked_tenant:
        raise RequestError("blocked")

check.Settings = Tenants
"""


def logger(folder: Path, name: str, source: str) -> PluginChoice:
    path = folder / f"{name}.py"
    path.write_text(STAT_LOGGER + f"\n# {name}\n" + source, "utf-8")
    return PluginChoice(name=f"{path}:Mine")


def settings(*choices: PluginChoice, **values: Any) -> dict[str, Any]:
    config = fake_config(stat_loggers=choices, **values)
    plan = PluginManager(discover=False).plan(config, launcher=False)
    return part_settings(plan.all("stat_logger"), config)


def test_they_are_those_of_the_chosen_plugins(tmp_path):
    lanes = logger(tmp_path, "lanes", SETTINGS.format(default=4))
    assert list(settings(lanes, num_lanes="2k")) == ["num_lanes", "lane_key"]
    assert settings(logger(tmp_path, "plain", "")) == {}


def test_one_that_two_declare_alike_is_shared(tmp_path):
    first, second = (logger(tmp_path, name, SETTINGS.format(default=4)) for name in ("a", "b"))
    assert list(settings(first, second)) == ["num_lanes", "lane_key"]


def test_one_that_two_declare_differently_is_refused_naming_both(tmp_path):
    first = logger(tmp_path, "a", SETTINGS.format(default=4))
    second = logger(tmp_path, "b", SETTINGS.format(default=5))
    text = (
        r"^stat logger '.*' \(.*a\.py\) at .*a\.py:\d+ and stat logger '.*' \(.*b\.py\) at .*b\.py:\d+ both claim "
        "the setting 'num_lanes'; rename it, or choose another plugin"
    )
    with pytest.raises(ConfigError, match=text):
        settings(first, second)


def test_one_of_the_kernel_is_refused(tmp_path):
    source = SETTINGS.format(default=4).replace("num_lanes", "max_num_seqs")
    with pytest.raises(
        ConfigError,
        match=r"^tenonry itself at .*config/__init__\.py:\d+ and stat logger .*greedy\.py:\d+ both .*'max_num_seqs'",
    ):
        settings(logger(tmp_path, "greedy", source))


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"num_lanes": 0}, r"^num_lanes=0: .*greater than or equal to 1$"),
        ({"lane_key": 5}, r"^lane_key: .*valid string$"),
        ({"num_lane": 2}, r"^unknown setting 'num_lane'; did you mean 'num_lanes'\?$"),
        ({"max_num_seq": 2}, r"^unknown setting 'max_num_seq'; did you mean 'max_num_seqs'\?$"),
        ({"zzzz": 2}, r"^unknown setting 'zzzz'$"),
    ],
)
def test_a_bad_value_and_an_unknown_name_are_refused(tmp_path, values, text):
    with pytest.raises(ConfigError, match=text):
        settings(logger(tmp_path, "lanes", SETTINGS.format(default=4)), **values)


def test_one_of_a_distribution_that_is_not_installed_names_it(tmp_path, monkeypatch):
    monkeypatch.setenv(EXCLUDED, "tenonry-scheduling")
    text = "^unknown setting 'validate_scheduler'; it comes with: pip install tenonry-scheduling$"
    with pytest.raises(ConfigError, match=text):
        settings(logger(tmp_path, "lanes", SETTINGS.format(default=4)), validate_scheduler=False)


def test_settings_that_are_no_model_are_refused(tmp_path):
    with pytest.raises(PluginIncompatible, match=r"has Settings that are no .*Settings\(PluginSe"):
        settings(logger(tmp_path, "wrong", "Mine.Settings = {'level': 1}"))


def test_a_request_check_reads_its_own(site):
    site.install("acme-tenants", modules={"acme_tenants.py": CHECK})
    plan = PluginPlan((PluginRecord("request_check", "tenant", "acme_tenants:check"),))
    (check,) = plan.load_request_checks()
    limits = RequestLimits(10, 100, EngineConfig(model="m", blocked_tenant="eve"))
    check("bob", limits)
    with pytest.raises(RequestError, match="blocked"):
        check("eve", limits)


LIGHT = """
from pydantic import field_validator
from tenonry.config import PluginChoice, setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.point import Point

COUNTED = []
LANES = Point("acme.lanes", provider={"short": "acme-lanes"})

class Lanes(PluginSettings):
    lane: PluginChoice = setting(PluginChoice(name="short"))

    def uses(self, options):
        return [(LANES, self.lane)]

class ShortLane(PluginSettings):
    num_lanes: int = setting(4, ge=1)

    @field_validator("num_lanes")
    @classmethod
    def count(cls, value):
        COUNTED.append(value)
        return value
"""


@pytest.fixture
def lanes(site):
    """A stat logger and a plugin that it uses, whose settings stand in a light module."""
    site.install(
        "acme-lanes",
        entry_points={
            "tenonry.stat_loggers": {"lanes": "acme_heavy:Mine"},
            "acme.lanes": {"short": "acme_heavy:Short"},
            "tenonry.settings": {
                "stat_logger.lanes": "acme_light:Lanes",
                "lane.short": "acme_light:ShortLane",
            },
        },
        modules={
            "acme_light.py": LIGHT,
            "acme_heavy.py": STAT_LOGGER
            + "\nfrom acme_light import Lanes, ShortLane\nMine.Settings = Lanes\n"
            + "class Short:\n    Settings = ShortLane\n",
        },
    )
    return PluginRecord("stat_logger", "lanes", "acme_heavy:Mine", "acme-lanes", "1.0")


class TestLightModules:
    def test_settings_are_read_without_the_plugin(self, lanes):
        assert list(part_settings([lanes], EngineConfig(model="m"))) == ["lane", "num_lanes"]
        assert "acme_light" in sys.modules
        assert "acme_heavy" not in sys.modules

    def test_of_another_distribution_the_class_is_asked(self, lanes):
        other = msgspec.structs.replace(lanes, distribution="acme-other")
        assert settings_of(other).__name__ == "Lanes"
        assert "acme_heavy" in sys.modules

    def test_what_is_no_model_is_refused(self, site):
        site.install(
            "acme-lanes",
            entry_points={"tenonry.settings": {"stat_logger.lanes": "acme_light:LANES"}},
            modules={"acme_light.py": "LANES = 3"},
        )
        record = PluginRecord("stat_logger", "lanes", "acme_heavy:Mine", "acme-lanes", "1.0")
        with pytest.raises(PluginIncompatible, match=r"'stat_logger\.lanes' .* no.* subclass"):
            settings_of(record)

    @pytest.mark.usefixtures("lanes")
    def test_they_are_validated_once(self):
        from_text = fake_config(stat_loggers=["lanes"], num_lanes="2k")
        PluginManager(discover=False).plan(from_text, launcher=False)
        light = importlib.import_module("acme_light")
        assert from_text.section(light.ShortLane).num_lanes == 2000
        assert from_text.section(light.ShortLane) is from_text.section(light.ShortLane)
        assert light.COUNTED == [2000]
