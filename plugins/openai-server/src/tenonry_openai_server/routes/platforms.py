"""Routes that hosting platforms and load balancers call: SageMaker's /ping and /invocations, and /load. Front end."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tenonry_openai_server.disconnect import Disconnected
from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.requests import CompletionRequest
from tenonry_openai_server.protocol.responses import LoadResponse, StateResponse
from tenonry_openai_server.routes.bodies import check_content_type, server_state
from tenonry_openai_server.routes.chat import CHAT
from tenonry_openai_server.routes.completions import COMPLETIONS
from tenonry_openai_server.routes.operations import answer, health

router = APIRouter()
router.head("/ping", include_in_schema=False)(health)
router.get("/ping", **describe("Same as /health", None, StateResponse))(health)
router.post("/ping", include_in_schema=False)(health)


@router.get("/load", **describe("Get the number of running requests", None, LoadResponse))
async def load(request: Request) -> Response:
    """Requests of this API server that wait or run."""
    return answer(LoadResponse(server_state(request).engine.num_unfinished_requests))


@router.post(
    "/invocations",
    **describe("Create a chat completion or a completion", CompletionRequest, {"type": "object"}),
)
async def invocations(request: Request) -> Response:
    """Answer a body with `messages` as /v1/chat/completions does, and one with `prompt` as /v1/completions."""
    check_content_type(request)
    try:
        fields = msgspec.json.decode(await request.body(), type=dict[str, msgspec.Raw])
    except ClientDisconnect:
        raise Disconnected from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return await COMPLETIONS.answer(request)  # reports the error
    if "messages" in fields:
        return await CHAT.answer(request)
    if "prompt" in fields:
        return await COMPLETIONS.answer(request)
    raise bad_request(
        "the body needs messages or prompt; other requests have routes of their own, such as /v1/embeddings"
    )
