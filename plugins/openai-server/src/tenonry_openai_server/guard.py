"""The outermost layer around the application, plain ASGI: request ids, the header for ignored parts of a request, the
count of active requests, and the final handler of exceptions. Front end.

A client's `X-Request-Id` is echoed and logged, and never used as a key. The raw `send` is left in the scope, so that a
stream may write its many chunks past the layers, which have nothing more to do once a response has started.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import MutableMapping
from typing import Any, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry_openai_server.errors import as_api_error, is_closed, send_error
from tenonry_openai_server.ignored import SCOPE_KEY, Ignored, IgnoredLog
from tenonry_openai_server.settings import ServerConfig

logger = logging.getLogger("tenonry.openai_server")
RAW_SEND = "tenonry.send"
REQUEST_ID = "tenonry.request_id"
NO_SNIFFING = (b"x-content-type-options", b"nosniff")  # browsers must not treat an answer as a page
_CLIENT_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def header(scope: Scope, name: bytes) -> bytes | None:
    """The first header of that (lower-case) name."""
    return next((value for key, value in scope["headers"] if key == name), None)


class GuardedState(Protocol):
    """State of the application that a Guard wraps: of one model, or of a host of several."""

    settings: ServerConfig
    ignored: IgnoredLog

    def enter(self) -> None:
        """An HTTP request begins."""

    def leave(self, scope: Scope) -> None:
        """An HTTP request has been answered."""


class Guard:
    """Wraps the whole application; every error has OpenAI's shape."""

    def __init__(self, app: ASGIApp, state: GuardedState) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        client_id = header(scope, b"x-request-id")
        label = (
            client_id
            if client_id and _CLIENT_ID.fullmatch(client_id)
            else uuid.uuid4().hex.encode()
        )
        scope[REQUEST_ID] = label.decode()
        scope[RAW_SEND] = send
        ignored = scope[SCOPE_KEY] = Ignored(self.state.ignored)
        started = False
        complete = False

        async def send_marked(message: MutableMapping[str, Any]) -> None:
            nonlocal started, complete
            if message["type"] == "http.response.start":
                started = True
                headers = [*message.get("headers", ()), (b"x-request-id", label), NO_SNIFFING]
                in_vain = ignored.header()
                message["headers"] = headers if in_vain is None else [*headers, in_vain]
            else:
                complete = not message.get("more_body", False)
            await send(message)

        self.state.enter()
        try:
            await self.app(scope, receive, send_marked)
        except Exception as error:  # noqa: BLE001  the last resort: logged, and answered in OpenAI's shape
            if complete:
                return  # an inner layer has answered and logged it
            if is_closed(error):  # with a 400, because the head is followed by no HTTP
                logger.debug("request %s: connection closed", scope[REQUEST_ID])
                while (await receive())["type"] != "http.disconnect":
                    pass  # otherwise the HTTP library would log a missing answer
                return
            answer = as_api_error(error, scope[REQUEST_ID])
            if started:
                raise ConnectionAbortedError("the response could not be finished") from None
            await send_error(send_marked, answer)
        finally:
            del scope[
                RAW_SEND
            ]  # it refers to the scope: a cycle that only a full collection would find
            self.state.leave(scope)
