"""POST /v1/completions. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.errors import RequestError
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.chunks import CompletionChunks
from tenonry_openai_server.protocol.complete import completion_response
from tenonry_openai_server.protocol.requests import CompletionRequest
from tenonry_openai_server.protocol.responses import CompletionResponse
from tenonry_openai_server.routes.generation import Endpoint
from tenonry_openai_server.routes.prompts import need_text, truncated

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

router = APIRouter()


@router.post(
    "/v1/completions",
    **describe(
        "Complete a prompt", CompletionRequest, CompletionResponse, text="text/event-stream"
    ),
)
async def completions(request: Request) -> Response:
    """Continue one prompt, or several concurrently."""
    return await COMPLETIONS.answer(request)


async def _prompts(engine: AsyncLLM, body: CompletionRequest) -> list[Any]:
    return [await _prompt(engine, body, prompt) for prompt in body.prompt]


async def _prompt(engine: AsyncLLM, body: CompletionRequest, prompt: str | list[int]) -> Any:
    """Convert one prompt for the engine. Raises RequestError for more token ids than the context holds."""
    if isinstance(prompt, str):
        need_text(engine, "a text prompt", "prompt")
    prompt = await truncated(engine, prompt, body, body.max_new_tokens)
    if isinstance(prompt, str):
        return prompt
    max_model_len = engine.info.max_model_len
    if len(prompt) > max_model_len:  # before millions of them become an array
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but the context holds max_model_len={max_model_len} tokens",
            "prompt",
            "context_length_exceeded",
        )
    return {"prompt_token_ids": prompt}


COMPLETIONS = Endpoint(
    body=CompletionRequest,
    id_prefix="cmpl",
    prompts=_prompts,
    chunks=lambda context, bases, _: CompletionChunks(context, bases),
    complete=completion_response,
)
