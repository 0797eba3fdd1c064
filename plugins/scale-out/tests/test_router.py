"""Choice of the engine of a request: a load balancer is called if there is a choice, and named when it fails."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from tenonry.client.load_balancer import EngineChooser
from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import EngineGenerateError, PluginFault, RequestError
from tenonry.plugin.manager import PluginManager
from tenonry.plugin.plan import PluginPlan
from tenonry_testkit.kernel.engine import fake_config, request

BALANCERS = """
from tenonry.errors import RequestError
from tenonry.interfaces.load_balancer import LoadBalancer

class Last(LoadBalancer):
    built = []
    def __init__(self, context):
        super().__init__(context)
        self.built.append(context.seed)
    def pick(self, request, candidates, load):
        return candidates[-1]

class Raises(Last):
    def pick(self, request, candidates, load):
        return {}[request.request_id]

class Stranger(Last):
    def pick(self, request, candidates, load):
        return 99

class Refuses(Last):
    def pick(self, request, candidates, load):
        raise RequestError("not here")

class Broken(Last):
    def __init__(self, context):
        raise ValueError("no such colour")
"""


@pytest.fixture
def chooser(site) -> Any:
    site.install("acme", version="2", modules={"acme_balancers.py": BALANCERS})

    def make(name: str, index: int = 0, plan: PluginPlan | None = None) -> EngineChooser:
        config = fake_config(load_balancer=f"acme_balancers:{name}", seed=5, data_parallel_size=2)
        if plan is None:
            record = PluginManager(discover=False).resolve(
                "load_balancer", config.load_balancer, config
            )
            plan = PluginPlan((record,))
        return EngineChooser(config, plan, index)

    return make


def pick(chooser: EngineChooser, *engines: int) -> int:
    return chooser.pick(request(1), engines, lambda engine: 0)


def test_the_plugin_chooses(chooser):
    assert pick(chooser("Last"), 0, 2, 5) == 5


def test_no_plugin_is_built_for_a_single_engine(chooser):
    acme_balancers = importlib.import_module("acme_balancers")

    assert pick(chooser("Last"), 3) == 3
    assert acme_balancers.Last.built == []


def test_each_front_end_has_a_seed_of_its_own(chooser):
    acme_balancers = importlib.import_module("acme_balancers")

    for index in (0, 3):
        chooser("Last", index).prepare()
    assert acme_balancers.Last.built == [5, 8]


@pytest.mark.parametrize(
    ("name", "text"),
    [("Raises", "KeyError: 'r1'"), ("Stranger", "it answered 99, which is none of \\[0, 1\\]")],
)
def test_one_that_fails_fails_the_one_request_and_is_named(chooser, name, text):
    with pytest.raises(
        EngineGenerateError,
        match=rf"request r1 failed: plugin acme_balancers:{name} \(acme 2\) failed in pick: .*{text}",
    ) as caught:
        pick(chooser(name), 0, 1)
    assert isinstance(caught.value.__cause__, PluginFault)


def test_it_may_refuse_a_request(chooser):
    with pytest.raises(RequestError, match="not here"):
        pick(chooser("Refuses"), 0, 1)


def test_a_constructor_that_fails_stops_the_start(chooser):
    with pytest.raises(PluginFault, match=r"failed in its constructor: ValueError: no such colour"):
        chooser("Broken").prepare()


def test_an_instance_that_grows_resolves_it_then(chooser):
    """The plan of one engine does not name a load balancer."""
    assert pick(chooser("Last", plan=PluginPlan()), 0, 1) == 1


@pytest.mark.parametrize(
    ("fields", "planned"),
    [
        ({}, False),
        ({"data_parallel_size": 2, "load_balancer": "acme_balancers:Last"}, True),
        ({"load_balancer": "acme_balancers:Last"}, True),
    ],
)
def test_it_is_planned_where_it_is_needed_or_asked_for(chooser, fields, planned):
    config = fake_config(**{"load_balancer": "affinity", **fields})
    plan = PluginManager(discover=False).plan(config)
    assert (plan.find("load_balancer") is not None) == planned
    assert PluginManager(discover=False).plan(config, launcher=False).find("load_balancer") is None


def test_a_choice_has_a_name_and_options():
    config = fake_config(load_balancer={"name": "a:B", "options": {"x": 1}})
    assert config.load_balancer == PluginChoice(name="a:B", options={"x": 1})
    assert EngineConfig(model="m").load_balancer.name == "affinity"
