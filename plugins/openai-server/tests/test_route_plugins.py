"""The extension point `tenonry.routes`."""

from __future__ import annotations

import sys
import types

import httpx
import msgspec
import pytest
from fastapi import APIRouter

from tenonry.errors import EngineGenerateError, PluginError, PluginNotFound, RequestError


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


def test_plugin_describes_what_it_takes(make_api, module):
    """In /openapi.json, for a router at the root: a type, or a schema that may refer to the server's."""
    kind = msgspec.defstruct("Wish", [("size", int)])
    temperature = {"$ref": "#/components/schemas/ChatRequest/properties/temperature"}
    by_hand = {"type": "object", "properties": {"warmth": temperature}}

    def build(context):
        router = APIRouter()
        router.post("/typed", **context.describe("one", kind))(lambda: None)
        router.post("/by_hand", **context.describe("two", by_hand, text="text/plain"))(lambda: None)
        return router

    build.at_root = True
    module.build = build
    document = make_api(route=("my_routes:build",)).get("/openapi.json").json()
    bodies = [
        document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        for path in ("/typed", "/by_hand")
    ]
    assert bodies == [{"$ref": "#/components/schemas/Wish"}, by_hand]
    assert document["components"]["schemas"]["Wish"]["required"] == ["size"]
    answers = document["paths"]["/by_hand"]["post"]["responses"]
    assert set(answers["200"]["content"]) == {"application/json", "text/plain"}
    assert "default" in answers


def test_bodies_of_plugins_are_bounded_too(make_api, module):
    api = make_api(route=("my_routes:build",), max_body_bytes=2000)
    assert api.request("POST", "/plugins/my_routes/tokens", content=b"x" * 3000).status_code == 413


def test_collision_is_refused_naming_both(make_api, module):
    with pytest.raises(
        PluginError, match=r"my_routes:build.*my_routes:broken.*both claim /plugins/my_routes"
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


CHATS = """
from fastapi import APIRouter
from starlette.responses import Response


def build(context):
    router = APIRouter()

    @router.post(PATH)
    async def shout(request):
        fields = await context.chats.read(request)
        answer = await context.chats.chat(request, fields)

        async def parts():
            async for part in answer.parts():
                yield "".join(event.text.upper() for event in part.events).encode()

        return context.chats.stream(
            parts(),
            lambda error: Response(context.chats.explain(request, error).message, 418),
            lambda error: b"! " + context.chats.explain(request, error).message.encode(),
        )

    return router


build.at_root = True
"""
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def chats(tmp_path):
    def write(path="/v1/shout"):
        file = tmp_path / f"shout{path.count('o')}.py"
        source = CHATS.replace("PATH", repr(path)).replace("(request)", "(request: Request)", 1)
        file.write_text("from starlette.requests import Request\n" + source)
        return f"{file}:build"

    return write


def test_route_with_a_path_of_its_own_answers_chats(make_api, chats):
    api = make_api(route=(chats(),), output_parser="think")
    api.engine.answer = "<think>hm</think>so"
    assert api.post("/v1/shout", CHAT).text == "HMSO"


def test_path_that_is_taken_is_refused(make_api, chats):
    with pytest.raises(PluginError, match="POST /v1/completions, which is taken"):
        make_api(route=(chats("/v1/completions"),))


def test_error_before_the_first_event_has_a_status_and_a_later_one_is_an_event(make_api, chats):
    api = make_api(route=(chats(),))
    api.engine.before = RequestError("too long")
    response = api.post("/v1/shout", CHAT)
    assert (response.status_code, response.text) == (418, "too long")
    api.engine.before = None
    api.engine.after = EngineGenerateError("boom")
    response = api.post("/v1/shout", CHAT)
    assert response.status_code == 200
    assert response.text.startswith("HE! the engine could not finish")
    assert api.post("/v1/shout", {"messages": []}).json()["error"]["param"] == "messages"


def test_client_that_leaves_a_routes_stream_is_aborted(make_live, chats, eventually):
    live = make_live(route=(chats(),))
    live.call(lambda: setattr(live.engine, "endless", True))
    with httpx.stream("POST", live.url + "/v1/shout", json=CHAT) as response:
        next(response.iter_raw())
    eventually(lambda: list(live.engine.ended.values()) == ["aborted"])
    eventually(lambda: not live.state.active)
