"""Monitoring routes: health, readiness, version, metrics, models. Front end, event loop."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.errors import TenonryError
from tenonry.version import __version__
from tenonry_openai_server.errors import APIError, clean
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.responses import (
    ModelCard,
    ModelList,
    StateResponse,
    VersionResponse,
)
from tenonry_openai_server.routes.bodies import server_state
from tenonry_openai_server.state import Phase

logger = logging.getLogger("tenonry.server")

router = APIRouter()
RECOVERING = "recovering"
STOPPED = "stopped"
RETRY_AFTER = {"retry-after": "2"}


def answer(value: Any, status: int = 200, **headers: str) -> Response:
    """A struct as JSON."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


@router.head("/health", include_in_schema=False)
@router.get("/health", **describe("Health: the engines run", None, StateResponse))
async def health(request: Request) -> Response:
    """200 while every engine answers, also during a drain and while a dead one restarts; 503 before they have started,
    when one fails, and once they have failed permanently.

    The engines query their executors; `AsyncLLM.check_health` has the deadline.
    """
    state = server_state(request)
    if not state.is_healthy:
        return answer(StateResponse(_shown(state.phase)), 503)
    error = await state.health.ask(state.engine)
    if error is not None:
        return answer(StateResponse("unhealthy", _reason(error)), 503)
    return answer(StateResponse("ok"))


def _reason(error: Exception) -> str:
    """Reason why an engine is unhealthy, for operators; texts of unexpected exceptions go to the log."""
    if isinstance(error, TenonryError):
        return clean(str(error))
    logger.error("checking the health of the engines failed", exc_info=error)
    return "the check failed; the server's log says more"


@router.head("/ready", include_in_schema=False)
@router.get("/ready", **describe("Readiness: the server accepts new requests", None, StateResponse))
async def ready(request: Request) -> Response:
    """200 while new requests are taken; 503 while the model loads, while no engine serves or a process of one
    is stopped, and during a drain.
    """
    state = server_state(request)
    if not state.is_ready:
        shown = RECOVERING if state.is_recovering else _shown(state.phase)
        return answer(StateResponse(shown), 503, **RETRY_AFTER)
    stopped = await state.stopped.ask(state.engine)
    if stopped:
        reason = f"stopped: {', '.join(stopped)}"
        return answer(StateResponse(STOPPED, reason), 503, **RETRY_AFTER)
    return answer(StateResponse("ready"))


def _shown(phase: Phase) -> str:
    """Phase of a server that is not ready; if it is set to ready, its engine died a moment ago."""
    return (Phase.DEAD if phase is Phase.READY else phase).value


@router.get("/version", **describe("Get the version", None, VersionResponse))
async def version(_: Request) -> Response:
    """The kernel's version."""
    return answer(VersionResponse(__version__))


@router.get("/metrics", **describe("Prometheus metrics", None, None, text="text/plain"))
async def metrics(request: Request) -> Response:
    """The exposition of the first stat logger that can render one: the numbers of all API servers and engines."""
    rendered = await server_state(request).engine.render_metrics()
    if rendered is not None:
        content, content_type = rendered
        return Response(content, headers={"content-type": content_type})
    message = "no stat logger renders metrics; start the server with --stat-logger prometheus"
    raise APIError(404, message, code="no_metrics")


async def _cards(request: Request, names: Sequence[str]) -> list[ModelCard]:
    state = server_state(request)
    engine = state.engine
    facts = await state.facts.of(engine)
    known: dict[str, Any] = {} if facts is None else msgspec.structs.asdict(facts)
    adapters = await state.adapters.all(engine)
    return [
        ModelCard(
            id=name,
            created=state.created,
            root=name,
            parent=state.model_names[0] if name in adapters else None,
            max_model_len=engine.info.max_model_len,
            **known,
        )
        for name in names
    ]


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", **describe("List the served models", None, ModelList))
async def models(request: Request) -> Response:
    """Return the served names of the model, and those of adapters."""
    state = server_state(request)
    names = [*state.model_names, *await state.adapters.all(state.engine)]
    return answer(ModelList(data=await _cards(request, names)))


@router.head("/v1/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}", **describe("Get a served model", None, ModelCard))
async def model(request: Request, name: str) -> Response:
    """One served name; all of them for a path that ends with its slash."""
    if not name:
        return await models(request)
    served, _ = await server_state(request).choose_model(name)
    (card,) = await _cards(request, [served])
    return answer(card)
