"""The application of a server of several models: finds the model of a request, waits for it, and calls its routes.

Each model has its own routes, those of a server with this model alone; routes about all models are here. Front end,
event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tenonry.config import EngineConfig
from tenonry.errors import TenonryError
from tenonry.version import __version__
from tenonry_openai_server.app import answer_disconnected, protected
from tenonry_openai_server.disconnect import Disconnected, DisconnectWatch
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.helper_thread import off_loop
from tenonry_openai_server.hosting.host import ModelHost, loaded_adapters
from tenonry_openai_server.hosting.metrics import joined
from tenonry_openai_server.hosting.model import HostedModel, Status
from tenonry_openai_server.ignored import SCOPE_KEY, IgnoredLog
from tenonry_openai_server.protocol.parse import not_json
from tenonry_openai_server.protocol.responses import (
    LoadResponse,
    ModelCard,
    ModelList,
    StateResponse,
    VersionResponse,
)
from tenonry_openai_server.routes.bodies import check_content_type
from tenonry_openai_server.routes.operations import RETRY_AFTER, answer
from tenonry_openai_server.settings import ServerConfig
from tenonry_openai_server.state import Phase

MODEL = "model"
SLEEP_S = 0.5  # time limit for an engine to report its sleep state


class NamedModel(msgspec.Struct):
    """The name in a body; other fields are left to the model's routes."""

    model: msgspec.Raw = msgspec.Raw(b"null")


class HostState:
    """State of all requests. `config`: of the first model, whose drain time applies."""

    def __init__(self, config: EngineConfig, settings: ServerConfig, host: ModelHost) -> None:
        self.config, self.settings, self.host = config, settings, host
        self.phase = Phase.STARTING
        self.created = host.models[0].state.created
        self.active = 0
        self.idle = asyncio.Event()
        self.idle.set()
        # Ignored parts of a request are counted by its model.
        self.ignored = IgnoredLog(lambda: None, refuses=settings.unknown_fields == "refuse")

    def choose_parsers(self, engine: Any) -> None:
        """Each model has its own, from its start on."""

    def attach(self, engine: Any) -> None:
        """The pinned models are loaded."""
        self.phase = Phase.READY

    def enter(self) -> None:
        """An HTTP request begins."""
        self.active += 1
        self.idle.clear()

    def leave(self, scope: MutableMapping[str, Any]) -> None:
        """An HTTP request has been answered."""
        self.active -= 1
        if not self.active:
            self.idle.set()


def create_host_app(state: HostState) -> ASGIApp:
    """The whole application."""
    open_files = {path for model in state.host.models for path in model.open_files}
    return protected(HostApp(state), state, open_files)


class HostApp:
    """Routes about all models; every other request belongs to one."""

    def __init__(self, state: HostState) -> None:
        self._state, self._host = state, state.host
        paths = {
            "/health": self._health,
            "/ping": self._health,
            "/ready": self._ready,
            "/version": self._version,
            "/load": self._load,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
            "/models": self._models,
            "/v1/models": self._models,
            "/models/{name:path}": self._model,
            "/v1/models/{name:path}": self._model,
        }
        routes = [Route(path, handler, methods=["GET"]) for path, handler in paths.items()]
        routes.append(Route("/ping", self._health, methods=["POST"]))
        self._router = Router(routes, default=self._dispatch, redirect_slashes=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # Starlette then raises for a wrong method instead of answering
        await self._router(scope, receive, send)

    # ------------------------------------------------------------------ one model
    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Call the routes of the request's model. A POST to one of them loads it."""
        request = Request(scope, receive)
        try:
            name, replay = await self._named(request)
            model = await self._host.find(name)
            if request.method != "POST" or not model.has_route(scope):
                await _answer(model, scope, replay, send)
                return
            if self._state.phase is Phase.STARTING:
                message = "the pinned models are still loading"
                raise APIError(503, message, code="starting", retry_after_s=2.0)
            async with contextlib.AsyncExitStack() as used:
                async with DisconnectWatch(receive):
                    await used.enter_async_context(self._host.use(model))
                await _answer(model, scope, replay, send)
        except (ClientDisconnect, Disconnected) as error:
            await answer_disconnected(request, error)(scope, receive, send)

    async def _named(self, request: Request) -> tuple[str | None, Receive]:
        """Return the model's name, in the query or the body, and a `receive` that replays the body."""
        scope = request.scope
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        name = next((value for key, value in query if key == MODEL), None)
        if name is not None:
            others = [(key, value) for key, value in query if key != MODEL]
            scope["query_string"] = urlencode(others).encode("latin-1")
        if request.method != "POST":
            return name, request.receive
        body = await request.body()
        if body:
            check_content_type(request)
            if name is None:
                name = await off_loop(len(body), lambda: name_in(body))
        return name, _replayed(body, request.receive)

    # ------------------------------------------------------------------ all models
    async def _health(self, _: Request) -> Response:
        """200 as long as the server answers: an engine that dies is restarted, or its model is loaded again."""
        return answer(StateResponse("ok"))

    async def _ready(self, _: Request) -> Response:
        """200 once the pinned models are loaded, until the server drains."""
        phase = self._state.phase
        if phase is Phase.READY:
            return answer(StateResponse("ready"))
        return answer(StateResponse(phase.value), 503, **RETRY_AFTER)

    async def _version(self, _: Request) -> Response:
        return answer(VersionResponse(__version__))

    async def _load(self, _: Request) -> Response:
        return answer(LoadResponse(self._host.num_unfinished_requests))

    async def _metrics(self, _: Request) -> Response:
        """Metrics of all loaded models, distinguished by the label `model_name`."""
        engines = [model.engine for model in self._host.models if model.engine is not None]
        found = [page for engine in engines if (page := await engine.render_metrics())]
        content_type = found[0][1] if found else "text/plain; version=0.0.4; charset=utf-8"
        return Response(
            joined(content for content, _ in found), headers={"content-type": content_type}
        )

    async def _openapi(self, request: Request) -> Response:
        """The document of a model's routes, by default the first one's, with the paths of this host."""
        model = await self._host.find(request.query_params.get(MODEL))
        document = model.app.openapi()
        paths = dict(document["paths"])
        for path in ("/models", "/models/{name}"):
            get = paths[f"/v1{path}"]["get"]
            paths[path] = {"get": {**get, "operationId": f"host_{get['operationId']}"}}
        root = request.scope.get("root_path", "").rstrip("/")
        servers = {"servers": [{"url": root}]} if root else {}
        return answer({**document, **servers, "paths": paths})

    async def _models(self, _: Request) -> Response:
        cards = await asyncio.gather(*(self._cards(model) for model in self._host.models))
        return answer(ModelList(data=[card for each in cards for card in each]))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if not name:
            return await self._models(request)
        model = await self._host.find(name)
        return answer(next(card for card in await self._cards(model) if card.id == name))

    async def _cards(self, model: HostedModel) -> list[ModelCard]:
        """Cards of a model's names and of its adapters."""
        status = await self._status(model)
        loaded = await loaded_adapters(model)
        adapters = sorted(model.adapters.union(loaded))
        facts: dict[str, Any] = {}
        if status is Status.READY and model.engine is not None:
            found = await model.state.facts.of(model.engine)
            facts = {} if found is None else msgspec.structs.asdict(found)
        return [
            ModelCard(
                id=name,
                created=self._state.created,
                root=name,
                parent=None if name in model.spec.names else model.name,
                max_model_len=model.longest,
                status=status.value,
                reason=model.reason or msgspec.UNSET,
                pinned=model.spec.is_pinned,
                num_requests=model.users,
                memory_bytes=model.memory.total if model.memory else msgspec.UNSET,
                **facts,
            )
            for name in (*model.spec.names, *adapters)
        ]

    async def _status(self, model: HostedModel) -> Status:
        if not model.is_usable or model.engine is None:
            return Status.FAILED if model.status is Status.READY else model.status
        if self._host.is_draining:
            return Status.DRAINING
        if not model.engine.is_serving:
            return Status.LOADING  # the engine restarts
        if self._state.settings.enable_operator_routes:
            with contextlib.suppress(TenonryError, TimeoutError):
                async with asyncio.timeout(SLEEP_S):
                    if await model.engine.is_sleeping():
                        return Status.SLEEPING
        return Status.READY


async def _answer(model: HostedModel, scope: Scope, receive: Receive, send: Send) -> None:
    state = model.state
    scope[SCOPE_KEY].report_to(state.ignored)
    state.enter()
    try:
        await model.app(scope, receive, send)
    finally:
        state.leave(scope)


def name_in(body: bytes) -> str | None:
    """Name of the model in a JSON object; None without one. Raises APIError 400 for invalid JSON."""
    try:
        value = msgspec.json.decode(msgspec.json.decode(body, type=NamedModel).model)
    except msgspec.ValidationError:  # no object; the route reports it
        return None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise not_json(body, error) from None
    return value if isinstance(value, str) else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Receive a body that was read; afterwards, messages of the connection."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
