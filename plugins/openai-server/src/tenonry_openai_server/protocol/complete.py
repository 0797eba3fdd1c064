"""Responses that do not stream: the last outputs of all prompts as one body. Front end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from tenonry.errors import EngineGenerateError
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_openai_server.protocol.options import ResponseContext, ResponseOptions
from tenonry_openai_server.protocol.responses import (
    ChatChoice,
    ChatMessage,
    ChatResponse,
    CompletionChoice,
    CompletionResponse,
    Usage,
)
from tenonry_openai_server.protocol.views import (
    CompletionView,
    shown_chat_logprobs,
    shown_prompt_logprobs,
)


def _usage(outputs: Sequence[RequestOutput], options: ResponseOptions) -> Usage:
    generated = sum(
        len(completion.token_ids) for output in outputs for completion in output.outputs
    )
    return Usage.of(
        sum(len(output.prompt_token_ids) for output in outputs),
        0 if options.score_only else generated,
        sum(output.num_cached_tokens for output in outputs),
    )


def _completions(output: RequestOutput) -> list[CompletionOutput]:
    """In the order of their indexes. Raises EngineGenerateError if one of them failed."""
    if any(completion.finish_reason == "error" for completion in output.outputs):
        raise EngineGenerateError(output.error or "no reason given")
    return sorted(output.outputs, key=lambda completion: completion.index)


def completion_response(
    context: ResponseContext, outputs: Sequence[RequestOutput]
) -> CompletionResponse:
    """Of the last output of each prompt, in order. Raises EngineGenerateError."""
    choices: list[CompletionChoice] = []
    for output in outputs:
        for completion in _completions(output):
            choices.append(_completion_choice(len(choices), context, output, completion))
    return CompletionResponse(
        id=context.id,
        created=context.created,
        model=context.model,
        choices=choices,
        usage=_usage(outputs, context.options),
        kv_transfer_params=outputs[-1].kv_transfer_params or UNSET,
    )


def _completion_choice(
    index: int, context: ResponseContext, output: RequestOutput, completion: CompletionOutput
) -> CompletionChoice:
    shown = CompletionView(context).show(output, completion)
    choice = CompletionChoice(
        index=index,
        text=shown.text,
        logprobs=shown.logprobs,
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        prompt_logprobs=shown_prompt_logprobs(context, output) or UNSET,
    )
    if context.options.token_ids:
        choice.token_ids = shown.token_ids
        choice.prompt_token_ids = output.prompt_token_ids
    return choice


def chat_response(context: ResponseContext, outputs: Sequence[RequestOutput]) -> ChatResponse:
    """Of the last output of a chat, which has one prompt. Raises EngineGenerateError."""
    (output,) = outputs
    return ChatResponse(
        id=context.id,
        created=context.created,
        model=context.model,
        choices=[_chat_choice(context, completion) for completion in _completions(output)],
        usage=_usage(outputs, context.options),
        prompt_token_ids=output.prompt_token_ids if context.options.token_ids else UNSET,
        prompt_logprobs=shown_prompt_logprobs(context, output) or UNSET,
        kv_transfer_params=output.kv_transfer_params or UNSET,
    )


def _chat_choice(context: ResponseContext, completion: CompletionOutput) -> ChatChoice:
    return ChatChoice(
        index=completion.index,
        message=ChatMessage(content=completion.text),
        logprobs=shown_chat_logprobs(context, completion),
        finish_reason=completion.finish_reason,
        stop_reason=completion.stop_reason,
        token_ids=completion.token_ids if context.options.token_ids else UNSET,
    )
