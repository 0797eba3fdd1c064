"""Builds the application: layers, routes, error handlers. Imported once the port is taken; front end."""

from __future__ import annotations

import logging
from collections.abc import Collection

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tenonry.errors import TenonryError
from tenonry.version import __version__
from tenonry_openai_server import openapi
from tenonry_openai_server.admission import AdmissionLayer, admissions
from tenonry_openai_server.auth import HostCheck, KeyCheck, OriginCheck, is_local
from tenonry_openai_server.client_name import ClientName
from tenonry_openai_server.content_encoding import BodyDecoder
from tenonry_openai_server.disconnect import Disconnected
from tenonry_openai_server.errors import APIError, as_api_error, bad_request
from tenonry_openai_server.guard import REQUEST_ID, Guard, GuardedState
from tenonry_openai_server.limits import BodyLimit
from tenonry_openai_server.parsers import check_setting
from tenonry_openai_server.routes import (
    adapters,
    chat,
    completions,
    control,
    operations,
    platforms,
    tokenize,
)
from tenonry_openai_server.routes.plugins import mount_plugins
from tenonry_openai_server.state import ServerState

logger = logging.getLogger("tenonry.server")
V1 = "/v1"


def create_app(state: ServerState) -> ASGIApp:
    """The whole application. Raises PluginError for a route or an output parser that cannot be used."""
    api, open_files = create_api(state)
    return protected(api, state, open_files)


def create_api(state: ServerState) -> tuple[FastAPI, set[str]]:
    """Build the routes of one model, without access control and limits; returns them with the paths that GET reads
    without a key.
    """
    settings = state.settings
    check_setting(settings.parser_names)
    api = FastAPI(
        title="tenonry",
        version=__version__,
        description="OpenAI-compatible inference server.",
        docs_url=None,  # the interactive pages load scripts from the internet
        redoc_url=None,
        redirect_slashes=False,
    )
    api.state.server = state
    routers = [module.router for module in (completions, chat, tokenize, operations, platforms)]
    if settings.enable_operator_routes:
        routers += [control.router, adapters.router]
    for router in routers:
        api.include_router(router)
    paths, open_files = mount_plugins(api, state, routers)
    openapi.install(api, refuses_unknown=settings.unknown_fields == "refuse")
    _handle_errors(api, paths)
    return api, open_files


def protected(inner: ASGIApp, state: GuardedState, open_files: Collection[str]) -> ASGIApp:
    """Wrap routes in decoding, limits and access control; GET reads `open_files` without a key."""
    settings = state.settings
    app: ASGIApp = BodyDecoder(ClientName(inner), settings.max_body_bytes)
    app = BodyLimit(app, settings.max_body_bytes, settings.receive_timeout)
    if settings.api_key:
        app = KeyCheck(app, settings, open_files)
    else:
        app = OriginCheck(app, settings)
        if settings.uds is None and is_local(settings.host):
            app = HostCheck(app, settings)
    if settings.allowed_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.allowed_origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),
        )
    if found := admissions(settings):
        app = AdmissionLayer(app, found)
    return Guard(app, state)


def _handle_errors(api: FastAPI, paths: Collection[str]) -> None:
    def respond(request: Request, error: Exception) -> Response:
        answer = as_api_error(error, request.scope.get(REQUEST_ID, ""))
        return Response(answer.body(), answer.status_code, answer.headers, "application/json")

    def unknown(request: Request, error: Exception) -> Response:
        if isinstance(error, APIError):
            return respond(request, error)
        path = request.scope["path"]
        meant = nearest_route(path, paths)
        remedy = f"did you mean {meant}?" if meant else "/openapi.json lists what there is"
        message = f"there is no route {request.method} {path}; {remedy}"
        return respond(request, APIError(404, message, code="unknown_url"))

    def not_allowed(request: Request, error: Exception) -> Response:
        headers = getattr(error, "headers", None)
        message = f"{request.scope['path']} does not take {request.method}"
        return respond(request, APIError(405, message, code="method_not_allowed", headers=headers))

    def invalid(request: Request, _: Exception) -> Response:
        return respond(
            request,
            bad_request("the request does not fit this route; /openapi.json says what does"),
        )

    api.add_exception_handler(404, unknown)
    api.add_exception_handler(405, not_allowed)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(Disconnected, answer_disconnected)
    for kind in (HTTPException, TenonryError, Exception):
        api.add_exception_handler(kind, respond)


def answer_disconnected(request: Request, _: Exception) -> Response:
    """Response to a client that has disconnected; the connection is closed already."""
    logger.info("request %s: client disconnected; aborted", request.scope.get(REQUEST_ID, ""))
    return Response(status_code=499)


def nearest_route(path: str, known: Collection[str]) -> str | None:
    """Return the route below /v1 that the path ends with: clients differ in their base URL."""
    path = path.rstrip("/")
    fitting = [
        each for each in known if each.startswith(V1) and path.endswith(each.removeprefix(V1))
    ]
    return max(fitting, key=len, default=None)
