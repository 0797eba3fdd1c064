"""Responses that do not stream: the last outputs of all prompts as one body. Front end."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry_openai_server.protocol.options import ResponseContext, ResponseOptions
from tenonry_openai_server.protocol.reader import AnswerForm, CompletionReader
from tenonry_openai_server.protocol.responses import (
    ChatChoice,
    ChatFunction,
    ChatMessage,
    ChatResponse,
    ChatToolCall,
    CompletionChoice,
    CompletionResponse,
    Usage,
)
from tenonry_openai_server.protocol.views import (
    CompletionView,
    shown_chat_logprobs,
    shown_prompt_logprobs,
)
from tenonry_output_parsers.events import CallArguments, CallStart, ReasoningDelta, TextDelta


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
    """Completions in the order of their indexes. Raises EngineGenerateError if one of them failed."""
    if any(completion.finish_reason == "error" for completion in output.outputs):
        raise output.failure()
    return sorted(output.outputs, key=lambda completion: completion.index)


def completion_response(
    context: ResponseContext, outputs: Sequence[RequestOutput], _: AnswerForm | None = None
) -> CompletionResponse:
    """Response for the last output of each prompt, in order. Raises EngineGenerateError."""
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
        weight_version=outputs[-1].weight_version or UNSET,
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


def chat_response(
    context: ResponseContext, outputs: Sequence[RequestOutput], form: AnswerForm | None = None
) -> ChatResponse:
    """Build the response from the last output of a chat, which has one prompt. Raises EngineGenerateError, and
    PluginFault of a parser.
    """
    (output,) = outputs
    return ChatResponse(
        id=context.id,
        created=context.created,
        model=context.model,
        choices=[
            _chat_choice(context, completion, form.open(output) if form is not None else None)
            for completion in _completions(output)
        ],
        usage=_usage(outputs, context.options),
        prompt_token_ids=output.prompt_token_ids if context.options.token_ids else UNSET,
        prompt_logprobs=shown_prompt_logprobs(context, output) or UNSET,
        kv_transfer_params=output.kv_transfer_params or UNSET,
        weight_version=output.weight_version or UNSET,
    )


def _chat_choice(
    context: ResponseContext, completion: CompletionOutput, reader: CompletionReader | None
) -> ChatChoice:
    message = ChatMessage(content=completion.text)
    finish_reason = completion.finish_reason
    if reader is not None:
        message = _parsed_message(reader, completion)
        finish_reason = reader.finish_reason(completion)
    return ChatChoice(
        index=completion.index,
        message=message,
        logprobs=shown_chat_logprobs(context, completion),
        finish_reason=finish_reason,
        stop_reason=completion.stop_reason,
        token_ids=completion.token_ids if context.options.token_ids else UNSET,
    )


def _parsed_message(reader: CompletionReader, completion: CompletionOutput) -> ChatMessage:
    """Parse a whole answer. Its content is null if there are calls and no text."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ChatToolCall] = []
    for event in reader.read(completion):
        if isinstance(event, TextDelta):
            texts.append(event.text)
        elif isinstance(event, ReasoningDelta):
            reasoning.append(event.text)
        elif isinstance(event, CallStart):
            function = ChatFunction(event.name, "")
            calls.append(ChatToolCall(id=event.call_id, function=function))
        elif isinstance(event, CallArguments):
            calls[-1].function.arguments += event.text
    message = ChatMessage(content="".join(texts) if texts or not calls else None)
    if reasoning:
        message.reasoning_content = message.reasoning = "".join(reasoning)
    if calls:
        message.tool_calls = calls
    return message
