"""POST /v1/responses, over the server's own door. Front end, event loop."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_routes.responses.answer import ResponseWriter
from tenonry_routes.responses.document import BODY
from tenonry_routes.responses.names import check_names
from tenonry_routes.responses.request import chat_fields
from tenonry_routes.responses.tools import field_names, own_names

EVENTS = "text/event-stream"


def build(context: Any) -> APIRouter:
    """The routes. `context.chats` is the server's door; errors have OpenAI's shape, which is the server's own."""
    router = APIRouter()
    chats = context.chats

    told = context.describe("Create a response (OpenAI Responses API)", BODY, text=EVENTS)

    @router.post("/v1/responses", **told)
    async def responses(request: Request) -> Response:
        """Continue a conversation that comes whole."""
        body = await chats.read(request)
        fields = chats.fields(request)
        check_names(body, fields)
        chat = chat_fields(body, fields.ignore)
        answer = await chats.chat(request, chat, field_names(chat, body.get("tools")))
        writer = ResponseWriter(
            answer, body, lambda text: chats.count_text(request, text), own_names(body.get("tools"))
        )
        if not body.get("stream"):
            parts = await chats.whole(request, answer)
            for part in parts:
                writer.part(part)
            return chats.answer(writer.response(parts[-1]))

        def refuse(error: Exception) -> Response:
            told = chats.explain(request, error)
            shape = {"message": told.message, "type": told.kind}
            shape |= {"param": told.param, "code": told.code}
            return chats.answer({"error": shape}, told.status, told.headers)

        def fail(error: Exception) -> bytes:
            told = chats.explain(request, error)
            return writer.failed(told.code, told.message)

        return chats.stream(writer.events(), refuse, fail)

    return router


build.at_root = True  # type: ignore[attr-defined]
