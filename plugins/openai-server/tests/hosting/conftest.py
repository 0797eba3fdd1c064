"""A host of models with fake engines, whose application is called in-process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from openai_server_fakes import MODEL, FakeEngine

from tenonry.config import EngineConfig
from tenonry.errors import LaunchError
from tenonry_openai_server.hosting.app import HostState, create_host_app
from tenonry_openai_server.hosting.host import ModelHost
from tenonry_openai_server.hosting.memory import ModelMemory
from tenonry_openai_server.hosting.model import HostedModel
from tenonry_openai_server.hosting.settings import HostConfig, ModelSpec
from tenonry_openai_server.settings import ServerConfig


class FakeStarter:
    """Starts fake engines: held back while `gate` is unset, refused for the reason in `failures`.

    `downloads`: models whose measurement waits for the event.
    """

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.begun = threading.Event()
        self.started: list[str] = []
        self.failures: dict[str, str] = {}
        self.downloads: dict[str, threading.Event] = {}

    def measure(self, model: HostedModel) -> ModelMemory:
        if model.name in self.downloads:
            assert self.downloads[model.name].wait(20)
        return ModelMemory(weights=10, kv_cache=0, process=0)

    def start(self, model: HostedModel) -> Any:
        self.started.append(model.name)
        self.begun.set()
        assert self.gate.wait(20)
        if model.name in self.failures:
            raise LaunchError(self.failures[model.name])
        engine: Any = FakeEngine(model.spec.config, answer=f"I am {model.name}.")
        model.state.choose_parsers(engine)
        return engine


class HostApi:
    """The application in-process. Coroutines run on its loop."""

    def __init__(self, runner: asyncio.Runner, names: tuple[str, ...], **host: Any) -> None:
        self.runner, self.starter = runner, FakeStarter()
        settings, hosting = ServerConfig(route=("page",)), HostConfig.model_validate(host)
        specs = [
            ModelSpec(
                (name,), EngineConfig(model=name, served_model_name=(name,)), settings,
                name in hosting.pin_model,
            )
            for name in names
        ]  # fmt: skip
        self.models = {spec.names[0]: HostedModel(spec, MODEL) for spec in specs}
        budget = hosting.model_memory_budget or 1000
        self.host = ModelHost(list(self.models.values()), hosting, budget, self.starter)
        self.state = HostState(specs[0].config, settings, self.host)
        self.app = create_host_app(self.state)

    def start(self) -> HostApi:
        self.host.load_pinned()

        async def listen() -> None:
            self.host.listen()
            self.state.attach(self.host)

        self.run(listen())
        return self

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    async def send(self, method: str, path: str, **keywords: Any) -> httpx.Response:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.request(method, path, **keywords)

    async def complete(self, model: str | None, **body: Any) -> httpx.Response:
        body = {"prompt": "ab", "max_tokens": 40, **body}
        return await self.send(
            "POST", "/v1/completions", json=body if model is None else {"model": model, **body}
        )

    async def text(self, model: str | None, **body: Any) -> str:
        response = await self.complete(model, **body)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    async def statuses(self) -> dict[str, str]:
        cards = (await self.send("GET", "/v1/models")).json()["data"]
        return {card["id"]: card["status"] for card in cards}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110  the state of another task
                await asyncio.sleep(0.005)


@pytest.fixture
def make_host() -> Iterator[Callable[..., HostApi]]:
    made: list[HostApi] = []
    with asyncio.Runner() as runner:

        def make(*names: str, **host: Any) -> HostApi:
            made.append(HostApi(runner, names or ("a", "b", "c"), **host))
            return made[-1]

        yield make
        for api in made:
            api.starter.gate.set()
            for download in api.starter.downloads.values():
                download.set()
    for api in made:
        api.host.shutdown()
