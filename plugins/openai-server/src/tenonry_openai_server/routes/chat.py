"""POST /v1/chat/completions. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_openai_server.errors import bad_request
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.complete import chat_response
from tenonry_openai_server.protocol.parsed_chunks import chat_chunks
from tenonry_openai_server.protocol.reader import AnswerForm
from tenonry_openai_server.protocol.requests import ChatRequest
from tenonry_openai_server.protocol.responses import ChatResponse
from tenonry_openai_server.routes.generation import Endpoint
from tenonry_openai_server.routes.prompts import render, truncated
from tenonry_openai_server.state import ServerState

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

router = APIRouter()

_NO_CALLS = (
    "tools: the answers of this model are not read for tool calls: its chat template shows no format that is known; "
    "leave them out, or the operator can name a parser with --output-parser"
)


@router.post(
    "/v1/chat/completions",
    **describe("Create a chat completion", ChatRequest, ChatResponse, text="text/event-stream"),
)
async def chat_completions(request: Request) -> Response:
    """Continue a chat with the assistant's answer."""
    return await CHAT.answer(request)


async def _prompts(engine: AsyncLLM, body: ChatRequest) -> list[Any]:
    """The one prompt that the messages make."""
    prompt = await render(engine, body.messages, body, special=body.adds_special_tokens)
    prompt = await truncated(engine, prompt, body, body.max_new_tokens)
    return [{"prompt_token_ids": prompt} if isinstance(prompt, list) else prompt]


def _form(state: ServerState, body: ChatRequest) -> AnswerForm | None:
    """Return the parsing of answers; None for text. Raises APIError 400 for tools that cannot be called."""
    parsers = state.parsers
    tools = tuple(tool.for_parser() for tool in body.shown_tools)
    if tools and (parsers is None or not parsers.reads_calls):
        raise bad_request(_NO_CALLS, "tools", "unsupported")
    if parsers is None:
        return None
    return AnswerForm(
        parsers,
        tools,
        wanted=tuple(tool for tool in tools if body.demands(tool.name)),
        parallel=body.parallel_tool_calls is not False,
        reasoning=body.include_reasoning is not False,
        hides_special=parsers.needs_special_tokens and body.skip_special_tokens is not False,
    )


CHAT = Endpoint(
    body=ChatRequest,
    id_prefix="chatcmpl",
    prompts=_prompts,
    chunks=chat_chunks,
    complete=chat_response,
    form=_form,
)
