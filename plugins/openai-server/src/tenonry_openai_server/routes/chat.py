"""POST /v1/chat/completions. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.chunks import ChatChunks
from tenonry_openai_server.protocol.complete import chat_response
from tenonry_openai_server.protocol.requests import ChatRequest
from tenonry_openai_server.protocol.responses import ChatResponse
from tenonry_openai_server.routes.generation import Endpoint
from tenonry_openai_server.routes.prompts import render, truncated

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    **describe("Answer in a chat", ChatRequest, ChatResponse, text="text/event-stream"),
)
async def chat_completions(request: Request) -> Response:
    """Continue a chat with the assistant's answer."""
    return await CHAT.answer(request)


async def _prompts(engine: AsyncLLM, body: ChatRequest) -> list[Any]:
    """The one prompt that the messages make."""
    prompt = await render(engine, body.messages, body, special=body.adds_special_tokens)
    prompt = await truncated(engine, prompt, body, body.max_new_tokens)
    return [{"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt]


CHAT = Endpoint(
    body=ChatRequest,
    id_prefix="chatcmpl",
    prompts=_prompts,
    chunks=ChatChunks,
    complete=chat_response,
)
