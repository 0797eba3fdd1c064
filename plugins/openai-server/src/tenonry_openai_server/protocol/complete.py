"""Responses that do not stream: the last outputs of all prompts as one body. Front end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from tenonry.errors import EngineGenerateError
from tenonry.outputs import CompletionOutput, Logprob, RequestOutput
from tenonry_openai_server.protocol.chunks import Wishes
from tenonry_openai_server.protocol.logprobs import (
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from tenonry_openai_server.protocol.responses import (
    ChatChoice,
    ChatMessage,
    ChatResponse,
    CompletionChoice,
    CompletionResponse,
    Usage,
)


def _usage(outputs: Sequence[RequestOutput], wishes: Wishes) -> Usage:
    generated = sum(
        len(completion.token_ids) for output in outputs for completion in output.outputs
    )
    return Usage.of(
        sum(len(output.prompt_token_ids) for output in outputs),
        0 if wishes.max_tokens == 0 else generated,
        sum(output.num_cached_tokens for output in outputs),
    )


def _check(output: RequestOutput) -> None:
    if any(completion.finish_reason == "error" for completion in output.outputs):
        raise EngineGenerateError(output.error or "no reason given")


def completion_response(
    response_id: str,
    created: int,
    model: str,
    outputs: Sequence[RequestOutput],
    wishes: Wishes,
    texts: TokenTexts,
) -> CompletionResponse:
    """Of the last output of each prompt, in order. Raises EngineGenerateError."""
    choices: list[CompletionChoice] = []
    for output in outputs:
        _check(output)
        for completion in sorted(output.outputs, key=lambda c: c.index):
            choices.append(_completion_choice(len(choices), output, completion, wishes, texts))
    return CompletionResponse(
        id=response_id,
        created=created,
        model=model,
        choices=choices,
        usage=_usage(outputs, wishes),
        kv_transfer_params=outputs[-1].kv_transfer_params or UNSET,
    )


def _completion_choice(
    index: int,
    output: RequestOutput,
    completion: CompletionOutput,
    wishes: Wishes,
    texts: TokenTexts,
) -> CompletionChoice:
    text, token_ids = completion.text, completion.token_ids
    positions: list[dict[int, Logprob] | None] = list(completion.logprobs or ())
    if wishes.max_tokens == 0:
        text, token_ids, positions = "", [], []
    choice = CompletionChoice(
        index=index,
        text=texts.prompt(output) + text if wishes.echo else text,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
    )
    if wishes.token_ids:
        choice.token_ids, choice.prompt_token_ids = token_ids, output.prompt_token_ids
    if wishes.prompt_logprobs and output.prompt_logprobs is not None:
        choice.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, texts)
    if wishes.logprobs is not None:
        if wishes.echo:
            token_ids = [*output.prompt_token_ids, *token_ids]
            positions = [
                *(output.prompt_logprobs or [None] * len(output.prompt_token_ids)),
                *positions,
            ]
        choice.logprobs = completion_logprobs(token_ids, positions, texts)
    return choice


def chat_response(
    response_id: str,
    created: int,
    model: str,
    output: RequestOutput,
    wishes: Wishes,
    texts: TokenTexts,
) -> ChatResponse:
    """Of the last output of a chat. Raises EngineGenerateError."""
    _check(output)
    response = ChatResponse(
        id=response_id,
        created=created,
        model=model,
        choices=[
            _chat_choice(c, wishes, texts) for c in sorted(output.outputs, key=lambda c: c.index)
        ],
        usage=_usage([output], wishes),
        kv_transfer_params=output.kv_transfer_params or UNSET,
    )
    if wishes.token_ids:
        response.prompt_token_ids = output.prompt_token_ids
    if wishes.prompt_logprobs and output.prompt_logprobs is not None:
        response.prompt_logprobs = prompt_logprobs(output.prompt_logprobs, texts)
    return response


def _chat_choice(completion: CompletionOutput, wishes: Wishes, texts: TokenTexts) -> ChatChoice:
    logprobs = None
    if wishes.logprobs is not None:
        logprobs = chat_logprobs(
            completion.token_ids, completion.logprobs or [], texts, wishes.logprobs
        )
    return ChatChoice(
        index=completion.index,
        message=ChatMessage(content=completion.text),
        logprobs=logprobs,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        token_ids=completion.token_ids if wishes.token_ids else UNSET,
    )
