"""Choice of the engine of a request: the load balancer is called if there is a choice, and named when it fails."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import pytest
import zmq

from tenonry.config import EngineConfig, PluginChoice
from tenonry.errors import EngineGenerateError, PluginFault, PluginNotFound, RequestError
from tenonry.plugin.manager import PluginManager, build_coordination
from tenonry.plugin.plan import PluginPlan
from tenonry_scale_out.router import BalancedRouter
from tenonry_testkit.kernel.engine import fake_config, request
from tenonry_testkit.plugins import TmpPlugins

BALANCERS = """
from tenonry.errors import RequestError
from tenonry_scale_out.load_balancer import LoadBalancer

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
def router(tmp_path) -> Iterator[Any]:
    """Build the router of a front end with one of these load balancers."""
    site = TmpPlugins(tmp_path / "site", see_installed=True)
    with site, zmq.Context() as context:
        site.distribution("acme", "2", modules={"acme_balancers": BALANCERS})

        def make(name: str, index: int = 0) -> BalancedRouter:
            config = fake_config(load_balancer=f"acme_balancers:{name}", seed=5)
            return BalancedRouter(config, context, None, index, 1)

        yield make


def pick(router: BalancedRouter, *engines: int) -> int:
    return router.pick(request(1), engines, lambda engine: 0)


def test_the_plugin_chooses(router):
    assert pick(router("Last"), 0, 2, 5) == 5


def test_a_single_engine_gets_everything(router):
    assert pick(router("Raises"), 3) == 3


def test_each_front_end_has_a_seed_of_its_own(router):
    acme_balancers = importlib.import_module("acme_balancers")

    for index in (0, 3):
        router("Last", index)
    assert acme_balancers.Last.built == [5, 8]


@pytest.mark.parametrize(
    ("name", "text"),
    [("Raises", "KeyError: 'r1'"), ("Stranger", "it answered 99, which is none of \\[0, 1\\]")],
)
def test_one_that_fails_fails_the_one_request_and_is_named(router, name, text):
    with pytest.raises(
        EngineGenerateError,
        match=rf"request r1 failed: plugin acme_balancers:{name} \(acme 2\) failed in pick: .*{text}",
    ) as caught:
        pick(router(name), 0, 1)
    assert isinstance(caught.value.__cause__, PluginFault)


def test_it_may_refuse_a_request(router):
    with pytest.raises(RequestError, match="not here"):
        pick(router("Refuses"), 0, 1)


def test_a_constructor_that_fails_stops_the_start(router):
    with pytest.raises(PluginFault, match=r"failed in its constructor: ValueError: no such colour"):
        router("Broken")


@pytest.mark.parametrize(
    ("fields", "planned"),
    [
        ({}, False),
        ({"data_parallel_size": 2, "load_balancer": "acme_balancers:Last"}, True),
        ({"load_balancer": "acme_balancers:Last"}, True),
    ],
)
def test_the_coordination_is_planned_where_it_is_needed(router, fields, planned):
    config = fake_config(**{"load_balancer": "affinity", **fields})
    plan = PluginManager(discover=False).plan(config)
    assert (plan.find("coordination") is not None) == planned
    assert PluginManager(discover=False).plan(config, launcher=False).find("coordination") is None


@pytest.mark.parametrize("size", [1, 2])
def test_an_unknown_load_balancer_is_refused_before_anything_starts(router, size):
    config = fake_config(load_balancer="afinity", data_parallel_size=size)
    with pytest.raises(PluginNotFound, match="did you mean 'affinity'"):
        PluginManager(discover=False).plan(config)


def test_an_instance_that_grows_resolves_it_then(router):
    """The plan of one engine names no coordination."""
    config = fake_config(load_balancer="acme_balancers:Last")
    coordination, record = build_coordination(config, PluginPlan())
    assert record.name == "scale-out"
    with (
        zmq.Context() as context,
        contextlib.closing(coordination.router(context, None, 0, 1)) as made,
    ):
        assert pick(made, 0, 1) == 1


def test_a_choice_has_a_name_and_options():
    config = fake_config(load_balancer={"name": "a:B", "options": {"x": 1}})
    assert config.load_balancer == PluginChoice(name="a:B", options={"x": 1})
    assert EngineConfig(model="m").load_balancer.name == "affinity"
