"""The suite of routes, over one that is right and over broken ones."""

from __future__ import annotations

import itertools
import socket
import threading
from typing import ClassVar

import pytest
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from tenonry_testkit.outcomes import failing_tests
from tenonry_testkit.route import RouteContract

ACCEPTS = "test_it_is_a_route_that_the_server_accepts"
EFFECTS = "test_building_has_no_effects"
WAITS = "test_it_waits_for_an_engine"
STAYS = "test_routes_of_the_server_stay"


def length(context):
    """Counts what it gets, and what an engine has."""
    router = APIRouter()

    @router.post("/length")
    async def of_body(request: Request) -> dict[str, int]:
        return {"length": len(await request.body())}

    @router.get("/blocks")
    async def blocks() -> dict[str, int]:
        return {"blocks": context.engine.info.num_gpu_blocks}

    return router


def at_root(context):
    return length(context)


at_root.at_root = True


class TestLength(RouteContract):
    route = f"{__name__}:length"
    requests: ClassVar = [("POST", "/length", [1], 200), ("GET", "/blocks", None, 503)]


class TestAtRoot(RouteContract):
    route = f"{__name__}:at_root"
    requests: ClassVar = [("POST", "/length", [1], 200)]


@pytest.mark.parametrize("name", ["messages", "pooling", "responses"])
@pytest.mark.correct("route")
def test_first_party_routes_pass(name):
    assert failing_tests(type("Suite", (RouteContract,), {"route": name})) == {}


number = 5


def returns_a_text(context):
    return "no app"


def fails(context):
    raise KeyError(context.name)


def reads_the_engine(context):
    return length(context) if context.engine else None


def is_no_router(context):
    async def app(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    return app


is_no_router.at_root = True


def takes_a_path(context):
    router = APIRouter()
    router.get("/v1/models")(dict)
    return router


takes_a_path.at_root = True
COUNT = itertools.count()
OPEN = []


def is_built_once(context):
    if next(COUNT):
        raise RuntimeError("there is one already")
    return length(context)


def prints(context):
    print("mounted", context.name)
    return length(context)


def binds(context):
    sock = socket.socket()
    OPEN.append(sock.close)
    sock.bind(("127.0.0.1", 0))
    return length(context)


def leaves_a_thread(context):
    event = threading.Event()
    OPEN.append(event.set)
    threading.Thread(target=event.wait, args=(60,), daemon=True).start()
    return length(context)


def answers_everything(context):
    async def app(scope, receive, send):
        await PlainTextResponse("ok")(scope, receive, send)

    return app


def takes_all_of_the_root(context):
    router = APIRouter()
    router.get("/{path:path}")(lambda path: {"path": path})
    return router


takes_all_of_the_root.at_root = True


def has_no_schema(context):
    router = length(context)
    body = {"content": {"application/json": {"schema": {"type": {1, 2}}}}}
    router.get("/odd", openapi_extra={"requestBody": body})(dict)
    return router


has_no_schema.at_root = True


def fails_without_an_engine(context):
    router = APIRouter()

    @router.get("/blocks")
    async def blocks():
        try:
            return {"blocks": context.engine.info.num_gpu_blocks}
        except Exception as error:
            return JSONResponse({"error": str(error)}, 500)

    return router


def trusts_bodies(context):
    router = APIRouter()

    @router.post("/text")
    async def text(request: Request) -> dict[str, int]:
        found = await request.json()
        return {"length": len(found.get("text", ""))}

    return router


def forgets_requests(context):
    router = APIRouter()
    router.get("/length")(dict)
    return router


BROKEN = {
    "number": ACCEPTS,
    "returns_a_text": ACCEPTS,
    "fails": ACCEPTS,
    "reads_the_engine": ACCEPTS,
    "is_no_router": ACCEPTS,
    "takes_a_path": ACCEPTS,
    "is_built_once": "test_it_can_be_built_again",
    "prints": EFFECTS,
    "binds": EFFECTS,
    "leaves_a_thread": EFFECTS,
    "answers_everything": "test_unknown_paths_are_unknown",
    "takes_all_of_the_root": "test_unknown_paths_are_unknown",
    "has_no_schema": STAYS,
    "fails_without_an_engine": WAITS,
    "trusts_bodies": "test_bodies_may_be_anything",
    "forgets_requests": "test_requests_are_answered",
}


@pytest.fixture(autouse=True)
def _closed():
    yield
    while OPEN:
        OPEN.pop()()


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.broken("route")
def test_broken_ones_are_caught(name):
    fields = {"route": f"{__name__}:{name}", "requests": [("POST", "/length", [1], 200)]}
    suite = type("Suite", (RouteContract,), fields)
    assert BROKEN[name] in failing_tests(suite, [BROKEN[name]])


def test_every_test_of_the_suite_catches_one():
    tests = {name for name in dir(RouteContract) if name.startswith("test_")}
    assert tests == set(BROKEN.values())
