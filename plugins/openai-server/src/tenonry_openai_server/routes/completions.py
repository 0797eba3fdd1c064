"""POST /v1/completions. Front end, event loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tenonry.errors import RequestError
from tenonry.sampling_params import SamplingParams
from tenonry_openai_server.merge import last_outputs, merge
from tenonry_openai_server.openapi import describe
from tenonry_openai_server.protocol.chunks import CompletionChunks
from tenonry_openai_server.protocol.complete import completion_response
from tenonry_openai_server.protocol.logprobs import TokenTexts
from tenonry_openai_server.protocol.requests import CompletionRequest
from tenonry_openai_server.protocol.responses import CompletionResponse
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
from tenonry_openai_server.sse import EventStream
from tenonry_openai_server.watch import DisconnectWatch

if TYPE_CHECKING:
    from tenonry.client.async_llm import AsyncLLM

router = APIRouter()
DEFAULT_MAX_TOKENS = 16


@router.post(
    "/v1/completions",
    **describe(
        "Complete a prompt", CompletionRequest, CompletionResponse, text="text/event-stream"
    ),
)
async def completions(request: Request) -> Response:
    """Continue one prompt, or several at once."""
    state = server_state(request)
    engine = state.admit()
    body = await read_body(request, CompletionRequest)
    model = state.check_model(body.model)
    check_transfer(engine, body)
    wishes = wishes_of(body, logprobs=body.logprobs, echo=bool(body.echo))
    texts = TokenTexts(engine.io_processor, as_ids=bool(body.return_tokens_as_token_ids))
    params = sampling_params(engine, body)
    special = body.add_special_tokens is not False
    prompts = [
        await prepare(engine, body, prompt, params, special=special) for prompt in body.prompt
    ]
    call = Call.of(request, body, "cmpl")
    streams = [
        call.start(engine, prompt, params, body, number, add_special_tokens=special)
        for number, prompt in enumerate(prompts)
    ]
    if body.stream:
        bases = {call.prompt_id(number): number * params.n for number in range(len(streams))}
        write = CompletionChunks(call.id, call.created, model, wishes, texts, bases)
        return EventStream(streams[0] if len(streams) == 1 else merge(streams), write)
    async with DisconnectWatch(request.receive):
        outputs = await last_outputs(streams)
        return await respond(
            lambda: completion_response(call.id, call.created, model, outputs, wishes, texts),
            outputs,
        )


def sampling_params(engine: AsyncLLM, body: CompletionRequest) -> SamplingParams:
    """The body's sampling parameters over the model's. Raises RequestError."""
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    max_tokens = DEFAULT_MAX_TOKENS if asked is None else max(asked, 1)
    params = body.sampling_params(
        engine.model.default_sampling,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        detokenize=engine.io_processor is not None,
    )
    if body.echo and body.logprobs is not None and params.prompt_logprobs is None:
        params = msgspec.structs.replace(params, prompt_logprobs=body.logprobs)
    return params


async def prepare(
    engine: AsyncLLM,
    body: CompletionRequest,
    prompt: str | list[int],
    params: SamplingParams,
    *,
    special: bool,
) -> Any:
    """One prompt as the engine takes it."""
    if isinstance(prompt, str):
        need_text(engine, "a text prompt", "prompt")
    prompt = await truncated(engine, prompt, body, params.max_tokens, special=special)
    if isinstance(prompt, str):
        return prompt
    longest = engine.info.max_model_len
    if len(prompt) > longest:  # before millions of them become an array
        raise RequestError(
            f"the prompt has {len(prompt)} tokens, but the context holds max_model_len={longest} tokens",
            "prompt",
            "context_length_exceeded",
        )
    return {"prompt_token_ids": prompt}
