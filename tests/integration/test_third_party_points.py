"""Three third-party packages: one opens a point, another fills it, a third fills the load balancers (Shows 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.cli import main
from tenonry.config import EngineConfig
from tenonry.errors import PluginError, PluginIncompatible, PluginNotFound
from tenonry.plugin.kinds import KINDS
from tenonry.plugin.manager import resolve_point
from tenonry_commands.plugins import points
from tenonry_scale_out.load_balancer import LOAD_BALANCERS
from tenonry_testkit.plugins import TmpPlugins

OPENER = """
    from abc import ABC, abstractmethod

    from tenonry.interfaces.plugin import NoOptions
    from tenonry.plugin import Point

    class Sampler(ABC):
        interface_version = 1
        Options = NoOptions

        @abstractmethod
        def sample(self, logits): ...

    SAMPLERS = Point("acme.samplers", Sampler, {"slow": "acme-slow-sampler"})
"""
FILLER = """
    from pydantic import Field

    from acme_sampling import Sampler
    from tenonry.interfaces.plugin import PluginOptions

    class Fast(Sampler):
        \"\"\"Takes the first.\"\"\"

        class Options(PluginOptions):
            top: int = Field(1, ge=1, description="How many.")

        def sample(self, logits):
            return logits[0]

    class Stranger:
        pass
"""
BALANCER = """
    from tenonry_scale_out.load_balancer import LoadBalancer
    from tenonry.interfaces.plugin import PluginOptions

    class LastOptions(PluginOptions):
        turns: int = 1

    class Last(LoadBalancer):
        Options = LastOptions

        def pick(self, request, candidates, load):
            return candidates[-1]

    class Stranger:
        pass
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[TmpPlugins]:
    with TmpPlugins(tmp_path / "site", see_installed=True) as plugins:
        plugins.distribution(
            "acme-sampling",
            "1.1",
            entry_points={"tenonry.points": {"sampler": "acme_sampling:SAMPLERS"}},
            modules={"acme_sampling": OPENER},
        )
        plugins.distribution(
            "swift",
            "2.2",
            entry_points={"acme.samplers": {"fast": "swift:Fast", "stranger": "swift:Stranger"}},
            modules={"swift": FILLER},
        )
        plugins.distribution(
            "fair-share",
            "3.3",
            requires=["tenonry>=0.1,<0.2"],
            entry_points={
                "tenonry.load_balancers": {"last": "fair_share:Last", "odd": "fair_share:Stranger"}
            },
            modules={"fair_share": BALANCER},
        )
        yield plugins


def point(site: TmpPlugins) -> Any:
    return site.import_module("acme_sampling").SAMPLERS


def plan(**fields: Any) -> Any:
    return resolve_point(LOAD_BALANCERS, EngineConfig(model="m", **fields).load_balancer)[1]


def test_all_are_listed(site, capsys):
    assert main(["plugins", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    listed = {(row["kind"], row["name"], row["distribution"], row["version"]) for row in rows}
    assert ("point", "sampler", "acme-sampling", "1.1") in listed
    assert ("sampler", "fast", "swift", "2.2") in listed
    assert ("load_balancer", "last", "fair-share", "3.3") in listed


def test_one_is_shown_with_its_options(site, capsys):
    assert main(["plugins", "show", "sampler/fast"]) == 0
    shown = capsys.readouterr().out
    assert "about         Takes the first." in shown
    assert "option        top: How many. (default 1)" in shown


def test_a_wrong_one_is_not_shown_but_refused(site, capsys):
    for name in ("sampler/stranger", "load_balancer/odd"):
        assert main(["plugins", "show", name]) == 1
        assert "is not a subclass of" in capsys.readouterr().err


class TestTheOpenedPoint:
    def test_a_name_is_resolved(self, site):
        found, record = resolve_point(point(site), "fast")
        assert found().sample([7, 8]) == 7
        assert (record.kind, record.distribution, record.version) == ("sampler", "swift", "2.2")

    def test_a_file_is_resolved(self, site, tmp_path):
        path = tmp_path / "mine.py"
        path.write_text("from swift import Fast\nclass Mine(Fast): ...\n", "utf-8")
        found, record = resolve_point(point(site), f"{path}:Mine")
        assert found.__name__ == "Mine"
        assert record.path == str(path)

    @pytest.mark.parametrize(
        ("name", "options", "error", "text"),
        [
            (
                "stranger",
                {},
                PluginIncompatible,
                r"swift:Stranger, swift 2\.2\) is not a subclass of",
            ),
            ("fats", {}, PluginNotFound, r"no sampler is called 'fats'; .*did you mean 'fast'\?"),
            ("slow", {}, PluginNotFound, "it comes with: pip install acme-slow-sampler"),
            ("fast", {"top": 0}, PluginError, "top=0: .*greater than or equal to 1"),
            ("fast", {"tpo": 2}, PluginError, r"unknown setting 'tpo'; did you mean 'top'\?"),
        ],
    )
    def test_what_is_wrong_is_refused(self, site, name, options, error, text):
        choice = EngineConfig(model="m", worker={"name": name, "options": options}).worker
        with pytest.raises(error, match=text):
            resolve_point(point(site), choice)


class TestTheLoadBalancers:
    def test_a_name_is_resolved(self, site):
        record = plan(load_balancer="last")
        assert (record.target, record.distribution, record.version) == (
            "fair_share:Last", "fair-share", "3.3",
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("choice", "error", "text"),
        [
            ("odd", PluginIncompatible, r"is not a subclass of tenonry_scale_out\.load_balancer"),
            ("lats", PluginNotFound, r"no load balancer is called 'lats'; .*did you mean 'last'\?"),
            (
                {"name": "last", "options": {"turn": 1}},
                PluginError,
                r"unknown setting 'turn'; did you mean 'turns'\?; known options: turns",
            ),
        ],
    )
    def test_what_is_wrong_is_refused(self, site, choice, error, text):
        with pytest.raises(error, match=text):
            plan(load_balancer=choice)


def test_the_distributions_of_the_repository_open_their_points():
    found = {point.kind for point in points()}
    engine = {"attention_backend", "buffers", "logits_processor", "model", "scheduling_policy"}
    assert found >= {*KINDS, "point", "hook_module"}
    assert found >= engine
    assert found >= {"command", "route"}
