"""The conformance suite of routes of `tenonry serve`, in the server's application and without an engine. Test process.

from tenonry_testkit.route import RouteContract

class TestMine(RouteContract):
    route = "my_package:build"
    requests = [("POST", "/count", {"text": "a"}, 200)]

Install `tenonry-openai-server` and `tenonry-testkit[server]`.
"""

from __future__ import annotations

import asyncio
import functools
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import httpx

from tenonry.config import EngineConfig
from tenonry.plugin.manager import resolve_point, settings_of
from tenonry_testkit.effects import watched

SERVER = "tenonry_openai_server"  # loaded by name: only this suite needs it
GARBAGE = (b"", b"\xff\x00", b"{", b"[]", b"null", b"1", b'{"a": {"b": [' + b"[" * 50)
UNAVAILABLE = 503


class RouteContract:
    """Subclass in a test module and name the `route`: an entry point or `module:function`.

    `requests`: (method, path below its prefix, JSON body or None, status) handled without an engine.
    """

    route: ClassVar[str | None] = None
    requests: ClassVar[Sequence[tuple[str, str, Any, int]]] = ()

    # ------------------------------------------------------------------ tools, for tests of your own
    def name(self) -> str:
        """Value of `--route`."""
        if self.route is None:
            raise TypeError(
                'this suite names nothing to test; add the line:  route = "my_package:build"'
            )
        return self.route

    def app(self) -> Any:
        """The server's application with this route alone, before an engine exists."""
        return _server("app:create_app")(self._state(self.name()))

    @functools.cached_property
    def _app(self) -> Any:
        return self.app()

    @functools.cached_property
    def _paths(self) -> list[tuple[str, str]]:
        return self.paths()

    def build(self) -> Any:
        """Return the application of the route's function."""
        factory, _ = resolve_point(_server("points:ROUTES"), self.name())
        return factory(self._context())

    def prefix(self) -> str:
        """Path prefix, empty at the root."""
        factory, _ = resolve_point(_server("points:ROUTES"), self.name())
        is_at_root = bool(getattr(factory, "at_root", False))
        return "" if is_at_root else f"/plugins/{_server('routes.plugins:mount_name')(self.name())}"

    def send(self, method: str, path: str, **fields: Any) -> httpx.Response:
        """Send one request below the prefix to the application of this test."""
        return self._send(self._app, method, self.prefix() + path, **fields)

    def paths(self) -> list[tuple[str, str]]:
        """(method, path) of each of its routes, if its application is a router."""
        return [
            (method, route.path)
            for route in getattr(self.build(), "routes", ())
            for method in sorted(getattr(route, "methods", None) or ())
        ]

    def _state(self, *routes: str) -> Any:
        return _server("state:ServerState")(
            EngineConfig(model="fake"),
            _server("settings:ServerConfig").model_validate({"route": routes}),
        )

    def _context(self) -> Any:
        _, record = resolve_point(_server("points:ROUTES"), self.name())
        return _server("routes.plugins:RouteContext")(
            _server("routes.plugins:mount_name")(self.name()),
            self._state(),
            self.prefix(),
            settings_of(record),
        )

    @staticmethod
    def _send(app: Any, method: str, path: str, **fields: Any) -> httpx.Response:
        async def main() -> httpx.Response:
            transport = httpx.ASGITransport(app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://127.0.0.1"
            ) as client:
                return await client.request(method, path, **fields)

        return asyncio.run(main())

    def _check(self, send: Callable[[str, str], httpx.Response]) -> None:
        """Check that errors are the client's, or the engine is missing."""
        for method, path in self._paths:
            answer = send(method, path)
            is_right = answer.status_code < 500 or answer.status_code == UNAVAILABLE
            assert is_right, f"{method} {path} answers {answer.status_code}: {answer.text[:200]}"

    # ------------------------------------------------------------------ the contract
    def test_it_is_a_route_that_the_server_accepts(self) -> None:
        """It is built before an engine exists, and its paths differ from the server's."""
        self.app()

    def test_it_can_be_built_again(self) -> None:
        """Each API server of a process has its own application."""
        assert self.build() is not None
        assert self.build() is not None
        self.app()

    def test_building_has_no_effects(self) -> None:
        """A server that does not start leaves nothing: no files, sockets, processes, output or threads."""
        self.build()  # imports may read files once
        factory, _ = resolve_point(_server("points:ROUTES"), self.name())
        context = self._context()
        with watched() as effects:
            factory(context)
        assert not effects, effects

    def test_unknown_paths_are_unknown(self) -> None:
        """It handles its own paths only."""
        for method in ("GET", "POST"):
            answer = self.send(method, "/a-path-that-nobody-has")
            assert answer.status_code in {404, 405}, f"{method} answers {answer.status_code}"

    def test_routes_of_the_server_stay(self) -> None:
        """They are unchanged, and /openapi.json describes all."""
        plain = _server("app:create_app")(self._state())
        with_it = self.app()
        for path in ("/version", "/health", "/v1/models", "/no-such-path"):
            answers = [self._send(app, "GET", path).status_code for app in (plain, with_it)]
            assert answers[0] == answers[1], f"{path} answers {answers[1]} instead of {answers[0]}"
        document = self._send(with_it, "GET", "/openapi.json")
        assert document.status_code == 200, document.text[:200]
        known = set(self._send(plain, "GET", "/openapi.json").json()["paths"])
        assert known <= set(document.json()["paths"])

    def test_it_waits_for_an_engine(self) -> None:
        """Without one, requests that need it get 503."""
        self._check(lambda method, path: self.send(method, path, json={}))

    def test_bodies_may_be_anything(self) -> None:
        """An unreadable body is the client's error."""
        headers = {"content-type": "application/json"}
        for body in GARBAGE:
            send = functools.partial(self.send, content=body, headers=headers)
            self._check(send)

    def test_requests_are_answered(self) -> None:
        """Responses to `requests` have the expected status, in any order."""
        for method, path, body, status in (*self.requests, *reversed(self.requests)):
            answer = self.send(method, path, **({} if body is None else {"json": body}))
            assert answer.status_code == status, answer.text[:200]


def _server(name: str) -> Any:
    """Return a member of the server, given as "module:name"."""
    return pkgutil.resolve_name(f"{SERVER}.{name}")
