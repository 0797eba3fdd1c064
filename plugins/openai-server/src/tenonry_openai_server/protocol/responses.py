"""Whole responses, as msgspec structs: sent by routes that do not stream, and documented by /openapi.json."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


class PromptTokensDetails(msgspec.Struct):
    """Part of Usage."""

    cached_tokens: int = 0


class Usage(msgspec.Struct):
    """Tokens of one request, over all its prompts and completions."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int) -> Usage:
        return cls(prompt, completion, prompt + completion, PromptTokensDetails(cached))


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities in the shape of completions: one entry per token in each list."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TopLogprob(msgspec.Struct):
    """One alternative at one position."""

    token: str
    logprob: float
    bytes: list[int] | None = None


class TokenLogprob(msgspec.Struct):
    """One token of a chat answer and its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] = []


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities in the shape of chat completions."""

    content: list[TokenLogprob]
    refusal: None = None


class PromptLogprob(msgspec.Struct):
    """One token of a prompt's position, keyed by its id."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One completion of one prompt; `index` counts prompts × n."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class CompletionResponse(msgspec.Struct, kw_only=True):
    """Response of POST /v1/completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    weight_version: str | UnsetType = UNSET


class ChatFunction(msgspec.Struct):
    """The function of a call, and its arguments as JSON text."""

    name: str
    arguments: str


class ChatToolCall(msgspec.Struct, kw_only=True):
    """A call that the model makes."""

    id: str
    type: Literal["function"] = "function"
    function: ChatFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """The answer of the model."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, kw_only=True):
    """Response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET
    weight_version: str | UnsetType = UNSET


class ModelCard(msgspec.Struct, kw_only=True):
    """One served name. Fields after `max_model_len` are omitted if the worker does not report them.

    Those from `status` on are of a server of several models. `reason`: why a model failed.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "tenonry"
    root: str
    parent: str | None = None
    max_model_len: int
    architecture: str | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    num_parameters: int | UnsetType = UNSET
    kv_bytes_per_token: int | UnsetType = UNSET
    state_bytes_per_sequence: int | UnsetType = UNSET
    features: dict[str, Any] | UnsetType = UNSET
    status: str | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    num_requests: int | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET


class ModelList(msgspec.Struct, kw_only=True):
    """Response of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(msgspec.Struct, kw_only=True):
    """Response of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(msgspec.Struct):
    """Response of POST /detokenize."""

    prompt: str


class StateResponse(msgspec.Struct):
    """Response of GET /health and GET /ready. `reason`: the error of an unhealthy engine."""

    status: str
    reason: str | UnsetType = UNSET


class LoadResponse(msgspec.Struct):
    """Response of GET /load."""

    server_load: int


class VersionResponse(msgspec.Struct):
    """Response of GET /version."""

    version: str
