"""The extension point `tenonry.routes`."""

from __future__ import annotations

import sys
import types

import pytest
from fastapi import APIRouter

from tenonry.errors import PluginError, PluginNotFound


@pytest.fixture
def module(monkeypatch):
    module = types.ModuleType("my_routes")
    router = APIRouter()
    contexts = []

    @router.get("/tokens")
    async def tokens() -> dict[str, int]:
        return {"left": contexts[0].engine.info.num_gpu_blocks}

    def build(context):
        contexts.append(context)
        return router

    module.build, module.contexts = build, contexts
    module.thing = 5
    module.broken = lambda context: 1 / 0
    module.wrong = lambda context: "no app"
    monkeypatch.setitem(sys.modules, "my_routes", module)
    return module


def test_plugin_is_mounted_under_its_name_and_reaches_the_engine(make_api, module):
    api = make_api(route=("my_routes:build",))
    assert api.get("/plugins/my_routes/tokens").json() == {"left": 10}
    (context,) = module.contexts
    assert (context.name, context.prefix, context.config) == (
        "my_routes",
        "/plugins/my_routes",
        api.state.config,
    )
    missing = api.get("/plugins/my_routes/nothing")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "unknown_url")


def test_plugin_learns_when_the_engine_is_not_there(make_api, module):
    api = make_api(route=("my_routes:build",))
    api.engine.dead = True
    response = api.get("/plugins/my_routes/tokens")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")


def test_bodies_of_plugins_are_bounded_too(make_api, module):
    api = make_api(route=("my_routes:build",), max_body_bytes=2000)
    assert api.request("POST", "/plugins/my_routes/tokens", content=b"x" * 3000).status_code == 413


def test_collision_is_refused_naming_both(make_api, module):
    with pytest.raises(
        PluginError, match=r"my_routes:build.*my_routes:broken.*both want /plugins/my_routes"
    ):
        make_api(route=("my_routes:build", "my_routes:broken"))


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ("my_routes:broken", "ZeroDivisionError"),
        ("my_routes:wrong", "no ASGI application"),
        ("my_routes:thing", "no callable"),
    ],
)
def test_broken_plugin_stops_the_start_by_name(choice, message, make_api, module):
    with pytest.raises(PluginError, match=f"{choice}.*{message}"):
        make_api(route=(choice,))


def test_unknown_plugin_is_refused_with_what_there_is(make_api):
    with pytest.raises(PluginNotFound, match="no route is called 'nothing'"):
        make_api(route=("nothing",))


ROUTES = """
from starlette.responses import PlainTextResponse
from starlette.routing import Route, Router


def build(context):
    async def hello(request):
        return PlainTextResponse(f"hello from {context.prefix}")

    return Router([Route("/hello", hello)])
"""


def test_installed_plugin_is_chosen_by_name_and_only_then(make_api, tmp_plugins):
    points = {"tenonry.routes": {"greet": "acme_greet:build"}}
    tmp_plugins.distribution(
        "acme-greet", requires=["tenonry>=0.1"], entry_points=points, modules={"acme_greet": ROUTES}
    )
    assert make_api().get("/plugins/greet/hello").status_code == 404
    assert (
        make_api(route=("greet",)).get("/plugins/greet/hello").text == "hello from /plugins/greet"
    )


def test_two_distributions_that_claim_a_name_are_both_named(make_api, tmp_plugins):
    for name in ("acme-greet", "other-greet"):
        module = name.replace("-", "_")
        points = {"tenonry.routes": {"greet": f"{module}:build"}}
        tmp_plugins.distribution(name, entry_points=points, modules={module: ROUTES})
    with pytest.raises(PluginError, match=r"(?s)acme-greet.*other-greet"):
        make_api(route=("greet",))
