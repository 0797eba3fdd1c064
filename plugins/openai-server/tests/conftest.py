"""Fixtures: the application over a fake engine, called in-process, and a real server for tests with sockets."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from openai_server_fakes import FakeEngine, sse_events

from tenonry.config import EngineConfig
from tenonry_openai_server.app import create_app
from tenonry_openai_server.http_server import HTTPServer, make_server
from tenonry_openai_server.serving.listener import listen
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import ServerState


class Api:
    """The application in-process, with synchronous calls."""

    def __init__(
        self, runner: asyncio.Runner, settings: ServerConfig, config: EngineConfig, *, text: bool
    ) -> None:
        self._runner = runner
        self.state = ServerState(config, settings)
        self.engine = FakeEngine(config, text=text)
        self.state.choose_parsers(self.engine)
        self.state.attach(self.engine)
        self.app = create_app(self.state)
        self._headers: dict[str, str] = {}

    def run(self, coroutine: Any) -> Any:
        return self._runner.run(coroutine)

    async def send(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        root_path = self.state.settings.root_path
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **keywords)

    def request(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        return self.run(self.send(method, path, **keywords))

    def get(self, path: str, **keywords: Any) -> httpx.Response:
        return self.request("GET", path, **keywords)

    def post(self, path: str, body: Any, **keywords: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **keywords)

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", {"prompt": "ab", **body})
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, *contents: str, **body: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content} for content in contents or ("hi",)]
        response = self.post("/v1/chat/completions", {"messages": messages, **body})
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, body: Any) -> list[str]:
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        return sse_events(response.text)


@pytest.fixture
def make_api() -> Iterator[Callable[..., Api]]:
    with asyncio.Runner() as runner:
        settings_of = ServerConfig.model_validate

        def make(
            *, config: dict[str, Any] | None = None, text: bool = True, **settings: Any
        ) -> Api:
            return Api(
                runner,
                settings_of(settings),
                EngineConfig(model="fake", **(config or {})),
                text=text,
            )

        yield make


@pytest.fixture
def api(make_api: Callable[..., Api]) -> Api:
    return make_api()


class LiveServer:
    """A real server in a thread, on a free port; `engine` is only touched through `call`."""

    def __init__(self, settings: ServerConfig, config: EngineConfig) -> None:
        self.sock, self.settings = listen(settings)
        self.config = config
        self.port = self.settings.port
        self.url = f"http://127.0.0.1:{self.port}"
        self.engine: FakeEngine
        self.state: ServerState
        self._server: HTTPServer
        self._loop: asyncio.AbstractEventLoop
        self._up = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.engine = FakeEngine(self.config)
        self.state = ServerState(self.config, self.settings)
        self.state.choose_parsers(self.engine)
        self.state.attach(self.engine)
        self._server = make_server(create_app(self.state), self.settings)
        self._loop.call_soon(self._up.set)
        await self._server.serve(sockets=[self.sock])

    def start(self) -> None:
        self._thread.start()
        assert self._up.wait(10)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the server's loop."""

        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)


@pytest.fixture
def make_live() -> Iterator[Callable[..., LiveServer]]:
    servers: list[LiveServer] = []

    def make(*, config: dict[str, Any] | None = None, **settings: Any) -> LiveServer:
        server = LiveServer(
            ServerConfig(port=0, disable_access_log=True, **settings),
            EngineConfig(model="fake", **(config or {})),
        )
        server.start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def live(make_live: Callable[..., LiveServer]) -> LiveServer:
    return make_live()


def eventually(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    """Wait until the condition holds; a deadline that only a hanging test meets."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


@pytest.fixture(name="eventually")
def _eventually() -> Callable[..., None]:
    return eventually
