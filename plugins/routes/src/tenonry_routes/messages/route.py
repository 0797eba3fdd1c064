"""POST /v1/messages and /v1/messages/count_tokens, and HEAD /, over the server's own door. Front end, event loop."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_routes.messages.answer import MessageStream, event, whole_message
from tenonry_routes.messages.document import BODY, COUNTED
from tenonry_routes.messages.names import check_names
from tenonry_routes.messages.request import THREAD_NOT_FOUND, chat_fields, field_names

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Errors:
    """Any error in this API's shape."""

    def __init__(self, chats: Any) -> None:
        self._chats = chats

    def event(self, request: Request, error: Exception) -> bytes:
        """One that ends a stream."""
        _, body = self._shaped(request, error)
        return event("error", **body)

    def answer(self, request: Request, error: Exception) -> Response:
        """One that comes before any answer."""
        told, body = self._shaped(request, error)
        answer: Response = self._chats.answer({"type": "error", **body}, told.status, told.headers)
        return answer

    def _shaped(self, request: Request, error: Exception) -> tuple[Any, dict[str, Any]]:
        told = self._chats.explain(request, error)
        default = "invalid_request_error" if told.status < 500 else "api_error"
        kind = TYPES.get(told.status, default)
        shaped: dict[str, Any] = {"type": kind, "message": told.message}
        if told.code == THREAD_NOT_FOUND:
            shaped["details"] = {"error_code": told.code}
        return told, {"error": shaped}


def build(context: Any) -> APIRouter:
    """The routes. `context.chats` is the server's door."""
    router = APIRouter()
    chats = context.chats
    errors = Errors(chats)

    answered = context.describe(
        "Create a message (Anthropic Messages API)", BODY, text="text/event-stream"
    )
    counted = context.describe("Count the tokens of a message (Anthropic Messages API)", COUNTED)

    @router.post("/v1/messages", **answered)
    async def messages(request: Request) -> Response:
        """Continue a conversation."""
        try:
            body = await chats.read(request)
            fields = chats.fields(request)
            check_names(body, fields)
            chat = chat_fields(body, fields.ignore)
            answer = await chats.chat(request, chat, field_names(chat, body))
            if not body.get("stream"):
                parts = await chats.whole(request, answer)
                return chats.answer(whole_message(answer, parts))
        except Exception as error:  # noqa: BLE001  every error has this API's shape
            return errors.answer(request, error)
        return chats.stream(
            MessageStream(answer).events(),
            lambda error: errors.answer(request, error),
            lambda error: errors.event(request, error),
        )

    @router.post("/v1/messages/count_tokens", **counted)
    async def count_tokens(request: Request) -> Response:
        """Number of tokens of the prompt; none are computed."""
        try:
            body = await chats.read_json(request)
            fields = chats.fields(request)
            check_names(body, fields)
            chat = chat_fields(body, fields.ignore, needs_max_tokens=False)
            count = await chats.count_tokens(request, chat)
        except Exception as error:  # noqa: BLE001  every error has this API's shape
            return errors.answer(request, error)
        return chats.answer({"input_tokens": count})

    @router.head("/", include_in_schema=False)
    async def root() -> Response:
        """Answer the probe that some clients send before their first request."""
        return Response()

    return router


build.at_root = True  # type: ignore[attr-defined]
