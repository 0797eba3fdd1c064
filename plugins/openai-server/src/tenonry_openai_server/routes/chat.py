"""POST /v1/chat/completions. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry_openai_server.merge import last_output
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.chunks import ChatChunks
from tenonry_openai_server.protocol.complete import chat_response
from tenonry_openai_server.protocol.logprobs import TokenTexts
from tenonry_openai_server.protocol.requests import ChatPrompt, ChatRequest, Message
from tenonry_openai_server.protocol.responses import ChatResponse
from tenonry_openai_server.routes.generation import (
    Call,
    check_transfer,
    need_text,
    read_body,
    respond,
    server_state,
    truncated,
    wishes_of,
)
from tenonry_openai_server.serving.helper_thread import off_loop
from tenonry_openai_server.sse import EventStream
from tenonry_openai_server.watch import DisconnectWatch

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

router = APIRouter()
MESSAGE_CHARS = 64  # a message takes a template as long as so many characters, whatever it says


@router.post(
    "/v1/chat/completions",
    **describe("Answer in a chat", ChatRequest, ChatResponse, text="text/event-stream"),
)
async def chat_completions(request: Request) -> Response:
    """Continue a chat with the assistant's answer."""
    state = server_state(request)
    engine = state.admit()
    body = await read_body(request, ChatRequest)
    model = state.check_model(body.model)
    check_transfer(engine, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    wishes = wishes_of(body, logprobs=logprobs)
    texts = TokenTexts(engine.io_processor, as_ids=bool(body.return_tokens_as_token_ids))
    max_tokens = (
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    )
    params = body.sampling_params(
        engine.model.default_sampling,
        max_tokens=max_tokens,
        logprobs=logprobs,
        detokenize=engine.io_processor is not None,
    )
    special = bool(body.add_special_tokens)  # a chat template writes them itself
    prompt = await render(engine, body.messages, body, special=special)
    prompt = await truncated(engine, prompt, body, max_tokens, special=special)
    call = Call.of(request, body, "chatcmpl")
    if isinstance(prompt, list):
        prompt = {"prompt_token_ids": prompt}
    outputs = call.start(engine, prompt, params, body, add_special_tokens=special)
    if body.stream:
        write = ChatChunks(call.id, call.created, model, wishes, texts, {})
        return EventStream(outputs, write)
    async with DisconnectWatch(request.receive):
        output = await last_output(outputs)
        return await respond(
            lambda: chat_response(call.id, call.created, model, output, wishes, texts), [output]
        )


async def render(
    engine: AsyncLLM, messages: list[Message], how: ChatPrompt, *, special: bool
) -> Any:
    """The prompt that a chat's messages make. Raises RequestError where the model has no chat template."""
    io_processor = need_text(engine, "a chat", "messages")
    chat = [message.for_template() for message in messages]
    size = sum(MESSAGE_CHARS + len(message["content"]) for message in chat)
    keywords = dict(how.chat_template_kwargs or {})
    prompt = await off_loop(
        size,
        lambda: io_processor.render_chat(
            chat,
            add_generation_prompt=how.generation_prompt,
            continue_final_message=bool(how.continue_final_message),
            chat_template_kwargs=keywords,
        ),
    )
    if special and isinstance(prompt, dict) and "prompt" in prompt:
        return {
            **prompt,
            "add_special_tokens": True,
        }  # asked for on top of what the template writes
    return prompt
