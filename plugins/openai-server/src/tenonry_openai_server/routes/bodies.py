"""Request access of routes: the server's state, and the checked body of a POST. Front end, event loop."""

from __future__ import annotations

from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from tenonry_openai_server.disconnect import Disconnected
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.ignored import ignored
from tenonry_openai_server.protocol.parse import Body, parse_body
from tenonry_openai_server.state import ServerState

BodyType = TypeVar("BodyType", bound=Body)


def server_state(request: Request) -> ServerState:
    """The state that `create_app` left with the application."""
    state: ServerState = request.app.state.server
    return state


async def read_body(request: Request, model: type[BodyType]) -> BodyType:
    """The checked body of a POST. Raises APIError 400 or 415, and Disconnected."""
    check_content_type(request)
    try:
        raw = await request.body()
    except ClientDisconnect:
        raise Disconnected from None
    return parse_body(model, raw, ignored(request).add)


def check_content_type(request: Request) -> None:
    """Raise APIError 415 for content that is not JSON.

    Other content types are rejected: a web page can send them across origins without a preflight request.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        shown = f"'{kind[:64]}'" if kind else "missing"
        raise APIError(
            415,
            f"the content type is {shown}; send application/json",
            code="unsupported_media_type",
        )
