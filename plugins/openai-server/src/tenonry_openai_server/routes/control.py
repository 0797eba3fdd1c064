"""Operator routes for running engines: sleep, pause, caches, profiles, new weights, number of engines. Front end.

These routes must be enabled by the operator, and require API keys. Weights are read from sources that the operator
listed.
"""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.errors import EngineGenerateError, TenonryError
from tenonry.version import __version__
from tenonry_openai_server.errors import APIError, bad_request
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.control import (
    AbortRequest,
    DoneResponse,
    EmptyRequest,
    PausedResponse,
    PauseRequest,
    ReplaceRequest,
    ResetPrefixCacheRequest,
    ScaleRequest,
    ServerInfoResponse,
    SleepingResponse,
    SleepRequest,
    UpdateWeightsRequest,
    WakeUpRequest,
)
from tenonry_openai_server.routes.bodies import server_state
from tenonry_openai_server.routes.operations import answer
from tenonry_openai_server.routes.operator_bodies import read_operation

if TYPE_CHECKING:
    from tenonry_openai_server.settings import ServerConfig
    from tenonry_openai_server.state import ServerState

SHARED_MEMORY = "shm:"
Result = TypeVar("Result")

router = APIRouter()


async def engine_result(act: Awaitable[Result]) -> Result:
    """Result of a call of the engines. Raises APIError 409 with their message: the client is the operator."""
    try:
        return await act
    except EngineGenerateError as error:
        raise APIError(409, str(error), code="refused_by_engine") from None
    except (TimeoutError, ValueError) as error:
        raise APIError(409, str(error), code="not_done") from None


@router.post(
    "/sleep", **describe("Put the engines to sleep and release memory", SleepRequest, DoneResponse)
)
async def sleep(request: Request) -> Response:
    """Free memory. Level 1: the KV cache; 2: the weights as well. Requests wait, or are rejected, until /wake_up."""
    body = await read_operation(request, SleepRequest)
    await engine_result(server_state(request).engine.sleep(body.level))
    return answer(DoneResponse())


@router.post(
    "/wake_up", **describe("Wake the engines up and allocate memory", WakeUpRequest, DoneResponse)
)
async def wake_up(request: Request) -> Response:
    """Restore the memory named by `tags`, or all."""
    body = await read_operation(request, WakeUpRequest)
    await engine_result(server_state(request).engine.wake_up(body.tags))
    return answer(DoneResponse())


@router.get("/is_sleeping", **describe("Get the sleep state", None, SleepingResponse))
async def is_sleeping(request: Request) -> Response:
    """True while weights or KV cache of every engine are away."""
    found = await engine_result(server_state(request).engine.is_sleeping())
    return answer(SleepingResponse(found))


@router.post("/pause", **describe("Pause requests", PauseRequest, DoneResponse))
async def pause(request: Request) -> Response:
    """Pause: `keep` suspends all requests, `wait` lets running ones finish, `abort` ends them."""
    body = await read_operation(request, PauseRequest)
    state = server_state(request)
    mode = body.chosen_mode
    if state.settings.api_server_count > 1:
        _check_alone(
            state, mode != "keep", f"mode '{mode}' is about the requests of one; use keep", "mode"
        )
        # Another server may receive the request to resume.
        await engine_result(state.engine.calls["operations"].hold())
        return answer(DoneResponse())
    pausing = state.engine.pause_generation(
        wait_for_inflight_requests=mode == "wait", clear_cache=body.clear_cache, keep=mode == "keep"
    )
    await engine_result(pausing)
    return answer(DoneResponse())


@router.get("/is_paused", **describe("Get the pause state", None, PausedResponse))
async def is_paused(request: Request) -> Response:
    """True between /pause and /resume."""
    state = server_state(request)
    _check_alone(state, True, "none of them knows of a pause at another")
    return answer(PausedResponse(state.engine.is_paused))


@router.get("/server_info", **describe("Get the settings of the engines", None, ServerInfoResponse))
async def server_info(request: Request) -> Response:
    """Return the operator's settings, without secrets, and without options of plugins, which may contain some."""
    return answer(ServerInfoResponse(__version__, server_state(request).engine.info.usage))


@router.post("/abort_requests", **describe("Abort requests", AbortRequest, DoneResponse))
async def abort_requests(request: Request) -> Response:
    """Abort the named requests, or all; their answers end with the reason `abort`."""
    body = await read_operation(request, AbortRequest)
    state = server_state(request)
    _check_alone(state, True, "each ends its own requests only")
    if body.request_ids is None:
        await state.engine.abort_all()
    else:
        await state.engine.abort(body.request_ids)
    return answer(DoneResponse())


def _check_alone(state: ServerState, is_needed: bool, why: str, param: str | None = None) -> None:
    """Raise APIError 400 for a request to a single API server if there are several."""
    count = state.settings.api_server_count
    if is_needed and count > 1:
        raise bad_request(f"there are {count} API servers: {why}", param, "unsupported")


@router.post("/resume", **describe("Resume paused requests", EmptyRequest, DoneResponse))
async def resume(request: Request) -> Response:
    """Resume requests."""
    await read_operation(request, EmptyRequest)
    await engine_result(server_state(request).engine.resume_generation())
    return answer(DoneResponse())


@router.post(
    "/reset_prefix_cache",
    **describe("Clear the prefix cache", ResetPrefixCacheRequest, DoneResponse),
)
async def reset_prefix_cache(request: Request) -> Response:
    """`done` is false where requests still use blocks."""
    body = await read_operation(request, ResetPrefixCacheRequest)
    resetting = server_state(request).engine.reset_prefix_cache(
        body.reset_running_requests, body.reset_connector
    )
    return answer(DoneResponse(await engine_result(resetting)))


@router.post("/reset_mm_cache", **describe("Clear the image cache", EmptyRequest, DoneResponse))
async def reset_mm_cache(request: Request) -> Response:
    """Clear the cache of inputs that are no text."""
    await read_operation(request, EmptyRequest)
    await engine_result(server_state(request).engine.reset_mm_cache())
    return answer(DoneResponse())


@router.post("/start_profile", **describe("Start a profile", EmptyRequest, DoneResponse))
async def start_profile(request: Request) -> Response:
    """Start a profile of every rank, and of this event loop if `--front-end-profile-dir` names a folder."""
    await read_operation(request, EmptyRequest)
    await engine_result(server_state(request).engine.start_profile())
    return answer(DoneResponse())


@router.post(
    "/stop_profile", **describe("Stop the profile and write it", EmptyRequest, DoneResponse)
)
async def stop_profile(request: Request) -> Response:
    """Write the profile to the worker's option `profile_dir`, and to `--front-end-profile-dir`."""
    await read_operation(request, EmptyRequest)
    await engine_result(server_state(request).engine.stop_profile())
    return answer(DoneResponse())


@router.post("/scale", **describe("Change the number of engines", ScaleRequest, DoneResponse))
async def scale(request: Request) -> Response:
    """Engines that leave finish their requests first."""
    body = await read_operation(request, ScaleRequest)
    try:
        await engine_result(server_state(request).engine.scale(body.size, body.drain_timeout))
    except TenonryError as error:
        raise APIError(409, str(error), code="not_scaled") from None
    return answer(DoneResponse())


@router.post(
    "/replace",
    **describe("Replace the engines by ones with other settings", ReplaceRequest, DoneResponse),
)
async def replace(request: Request) -> Response:
    """Start new engines next to the running ones and move their requests. A rejected change has no effect."""
    body = await read_operation(request, ReplaceRequest)
    state = server_state(request)
    for name, value in body.changes.items():
        check_choice(name, value, getattr(state.config, name, None))
    try:
        await engine_result(state.engine.replace_engines(**body.changes))
    except TenonryError as error:
        raise APIError(409, str(error), code="not_replaced") from None
    return answer(DoneResponse())


def check_choice(setting: str, value: Any, chosen: Any) -> None:
    """Raises APIError 403 for a class of a file that the operator did not choose: a holder of a key could run any code.

    `chosen`: the operator's value at the start.
    """
    name = value.get("name") if isinstance(value, dict) else value
    is_file = isinstance(name, str) and name.rpartition(":")[0].endswith(".py")
    if is_file and name != getattr(chosen, "name", chosen):
        raise APIError(
            403,
            f"{setting}={name[:200]!r}: a class of a file is not taken over HTTP; install a package, and give "
            "module:Class or the name of its entry point",
            code="plugin_not_allowed",
            param=setting,
        )


@router.post("/update_weights", **describe("Replace weights", UpdateWeightsRequest, DoneResponse))
async def update_weights(request: Request) -> Response:
    """Replace the weights by those of a safetensors file, a folder of them, or shared memory (shm:NAME)."""
    body = await read_operation(request, UpdateWeightsRequest)
    state = server_state(request)
    source = allowed_source(body.source, state.settings)
    await engine_result(state.engine.update_weights(source, body.names, body.version))
    return answer(DoneResponse())


def allowed_source(source: str, settings: ServerConfig) -> str:
    """The source, links followed, if the operator listed it. Raises APIError 403."""
    listed = settings.weight_source
    if source.startswith(SHARED_MEMORY):
        prefixes = [prefix for prefix in listed if prefix.startswith(SHARED_MEMORY)]
        if "/" not in source and any(source.startswith(prefix) for prefix in prefixes):
            return source
        raise _not_allowed(source)
    try:
        path = Path(source).resolve(strict=True)
        inside = [path, *(path.glob("*.safetensors") if path.is_dir() else ())]
        targets = [file.resolve(strict=True) for file in inside]
    except (OSError, RuntimeError, ValueError):
        raise _not_allowed(source) from None
    folders = [Path(folder).resolve() for folder in listed if not folder.startswith(SHARED_MEMORY)]
    if all(any(target.is_relative_to(folder) for folder in folders) for target in targets):
        return str(path)
    raise _not_allowed(source)


def _not_allowed(source: str) -> APIError:
    """Return the same error for a missing source and for an unreadable one."""
    return APIError(
        403,
        f"source {source[:200]!r} is not there, or not in what the operator listed with --weight-source",
        code="source_not_allowed",
        param="source",
    )
