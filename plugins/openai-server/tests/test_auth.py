"""Keys guard every route but three; local servers answer to local names only."""

from __future__ import annotations

import sys
import types

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

from tenonry_openai_server.auth import OPEN_PATHS


@pytest.fixture
def plugin_module(monkeypatch):
    module = types.ModuleType("server_test_routes")

    async def hello(request):
        return PlainTextResponse("hello")

    module.build = lambda context: Router([Route("/hello", hello)])
    monkeypatch.setitem(sys.modules, "server_test_routes", module)


def paths_of(routes, prefix="") -> set[str]:
    found = set()
    for route in routes:
        if isinstance(route, Mount):
            found |= paths_of(route.routes, prefix + route.path)
        elif hasattr(
            route, "original_router"
        ):  # how newer releases of FastAPI keep an included router
            found |= paths_of(route.original_router.routes, prefix)
        elif hasattr(route, "path"):
            found.add(prefix + route.path)
    return found


def application(app):
    while not hasattr(app, "routes"):
        app = app.app
    return app


def test_every_route_needs_a_key_but_probes(make_api, plugin_module):
    routes = ("server_test_routes:build",)
    api = make_api(api_key=("right",), route=routes, enable_operator_routes=True)
    paths = paths_of(application(api.app).routes)
    assert {"/v1/models", "/v1/completions", "/metrics", "/openapi.json"} <= paths
    assert "/plugins/server_test_routes/hello" in paths
    for path in paths:
        for method in ("GET", "POST"):
            response = api.request(method, path)
            assert (response.status_code == 401) == (path not in OPEN_PATHS), path
            wrong = api.request(method, path, headers={"authorization": "Bearer wrong"})
            assert (wrong.status_code == 401) == (path not in OPEN_PATHS), path
    assert {"/scale", "/v1/load_lora_adapter"} < paths


def test_right_key_opens(make_api, plugin_module):
    api = make_api(api_key=("one", "two"), route=("server_test_routes:build",))
    for key in ("one", "two"):
        assert api.get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code == 200
    response = api.get("/plugins/server_test_routes/hello", headers={"authorization": "bearer two"})
    assert response.text == "hello"


@pytest.mark.parametrize(
    "value", ["one", "Basic one", "Bearer", "Bearer ", "Bearer o", "Bearer one two", "bearer\tone"]
)
def test_almost_right_is_wrong(value, make_api):
    api = make_api(api_key=("one",))
    response = api.get("/v1/models", headers={"authorization": value})
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    "path", ["/health/", "/Health", "//health", "/health/../v1/models", "/version/x", "/v1/health"]
)
def test_open_paths_are_exact(path, make_api):
    assert make_api(api_key=("one",)).request("GET", f"http://127.0.0.1{path}").status_code == 401


def test_host_header_does_not_choose_the_path(make_api):
    """CVE-2026-48710: a check of an URL assembled from the Host header could be misled."""
    api = make_api(api_key=("one",))
    response = api.get("/v1/models", headers={"host": "127.0.0.1/health?"})
    assert response.status_code == 401


def test_root_path_is_seen_through(make_api):
    api = make_api(api_key=("one",), root_path="/api")
    scope_path = "/api/health"  # the scope of a server with a root path
    assert api.get(scope_path).status_code == 200
    assert api.get("/api/v1/models").status_code == 401
    assert api.get("/api/v1/models", headers={"authorization": "Bearer one"}).status_code == 200


def test_tenants_are_tagged_and_share_no_prefixes(make_api):
    api = make_api(api_key=("one", "two"))
    for key in ("one", "two", "one"):
        body = {"prompt": "a", "cache_salt": "s"}
        assert (
            api.post(
                "/v1/completions", body, headers={"authorization": f"Bearer {key}"}
            ).status_code
            == 200
        )
    tenants = [call.fields["tags"]["tenant"] for call in api.engine.received]
    salts = [call.fields["cache_salt"] for call in api.engine.received]
    assert tenants[0] == tenants[2] != tenants[1]
    assert salts[0] == salts[2] != salts[1]
    assert all(len(tenant) == 16 and "one" not in tenant for tenant in tenants)


def test_anonymous_requests_have_no_tenant(api):
    api.complete(cache_salt="s")
    assert (api.engine.received[0].fields["tags"], api.engine.received[0].fields["cache_salt"]) == (
        {},
        "s",
    )


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost", 200), ("LOCALHOST:1", 200), ("[::1]:8000", 200), ("x.localhost", 200),
        ("127.9.9.9", 200), ("evil.test", 403), ("evil.test:8000", 403), ("127.0.0.1.evil.test", 403),
        ("192.168.0.7", 403), ("friend.test:80", 200),
    ],
)  # fmt: skip
def test_local_server_answers_to_local_names(host, status, make_api):
    """A web page whose own name resolves to 127.0.0.1 is rejected."""
    api = make_api(allowed_hosts=("friend.test",))
    assert api.get("/v1/models", headers={"host": host}).status_code == status


def test_public_server_answers_to_any_name(make_api):
    api = make_api(host="0.0.0.0")
    assert api.get("/v1/models", headers={"host": "my.site"}).status_code == 200


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.test", 403), ("null", 403), ("http://127.0.0.1:9000", 403), ("HTTP://EVIL.TEST", 403),
        ("http://127.0.0.1", 200), ("https://friend.test", 200), ("app://notes", 200), ("file://", 200), (None, 200),
    ],
)  # fmt: skip
def test_pages_of_other_sites_change_nothing(origin, status, make_api):
    """A page may send a POST without a preflight request to a route of a plugin that checks no content type."""
    api = make_api(allowed_origins=("https://friend.test",))
    headers = {} if origin is None else {"origin": origin}
    response = api.post("/v1/completions", {"prompt": "a"}, headers=headers)
    assert response.status_code == status
    if status == 403:
        assert response.json()["error"]["code"] == "origin_not_allowed"
    assert api.get("/v1/models", headers=headers).status_code == 200


def test_a_key_is_enough_for_pages_of_other_sites(make_api):
    """A page has no key unless the owner passed it on."""
    api = make_api(api_key=("one",))
    headers = {"origin": "https://evil.test", "authorization": "Bearer one"}
    assert api.post("/v1/completions", {"prompt": "a"}, headers=headers).status_code == 200
