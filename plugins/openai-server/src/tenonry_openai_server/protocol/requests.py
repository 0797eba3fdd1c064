"""The request bodies of the routes that take a prompt. Front end."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema, model_validator

from tenonry.sampling_params import MAX_LOGPROBS, MAX_N, MAX_TOKENS
from tenonry_openai_server.protocol.parse import Body
from tenonry_openai_server.protocol.sampling import SamplingBody, Scalars, TokenIds, at_most

MAX_PROMPTS = 1024
MAX_MESSAGES = 4096
MAX_COMPLETIONS = 4096  # prompts × n of one request
MAX_TOKENIZE_IDS = 4_000_000

Prompt = str | list[int]
_FORMS = "must be a text, a list of texts, a list of token ids or a list of such lists, none of them empty"


def _are_ids(value: Any) -> bool:
    """A list of token ids and nothing else; checked without a Python loop."""
    return isinstance(value, list) and bool(value) and set(map(type, value)) == {int} and _in_range(value)


def _in_range(ids: list[int]) -> bool:
    if min(ids) < 0 or max(ids) >= 2**31:
        raise ValueError("a token id is at least 0 and below 2147483648")
    return True


def _prompts(value: Any) -> list[Prompt]:
    """Any of the four forms of a prompt, as a list of prompts."""
    if isinstance(value, str) or (isinstance(value, list) and value and type(value[0]) is int):
        value = [value]
    if not isinstance(value, list) or not value:
        raise ValueError(_FORMS)
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"has {len(value)} prompts; at most {MAX_PROMPTS} are allowed")
    if set(map(type, value)) != {str} and not all(map(_are_ids, value)):
        raise ValueError(_FORMS)
    return value


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_PROMPTS},
        _IDS,
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}
Prompts = Annotated[list[Prompt], PlainValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]


class CompletionRequest(SamplingBody):
    """Body of POST /v1/completions."""

    prompt: Prompts
    max_tokens: int | None = Field(None, ge=0, le=MAX_TOKENS, description="16 by default; 0 only with echo.")
    best_of: int | None = Field(None, ge=1, le=MAX_N)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _check(self) -> CompletionRequest:
        n = self.n or 1
        if self.best_of is not None and self.best_of != n:
            raise ValueError(f"best_of={self.best_of} differs from n={n}; choosing the best of more is not supported")
        if len(self.prompt) * n > MAX_COMPLETIONS:
            raise ValueError(f"{len(self.prompt)} prompts × n={n} is above {MAX_COMPLETIONS} completions")
        if self.max_tokens == 0 and not self.echo:
            raise ValueError("max_tokens=0 asks for nothing; give at least 1, or echo the prompt")
        return self


def _content(value: Any) -> str | None:
    """The text of a message: plain, or parts of type text joined by line breaks."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text or a list of parts")
    texts = []
    for part in value:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in {"text", "input_text"} or not isinstance(part.get("text"), str):
            shown = f"a part of type {kind!r}" if isinstance(kind, str) and kind != "text" else "a part without text"
            raise ValueError(f"holds {shown}; this server reads parts of type 'text' only")
        texts.append(part["text"])
    return "\n".join(texts)


_CONTENT_SCHEMA = {
    "anyOf": [
        {"type": "string"},
        {"type": "null"},
        {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
                "required": ["type", "text"],
            },
            "minItems": 1,
        },
    ]
}


class Message(BaseModel):
    """One message of a chat. What tools and reasoning added to earlier answers goes to the chat template as it is."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: str = Field(min_length=1, max_length=64)
    content: Annotated[str | None, PlainValidator(_content), WithJsonSchema(_CONTENT_SCHEMA)] = None
    name: str | None = Field(None, max_length=256)
    tool_calls: Annotated[list[dict[str, Any]] | None, at_most(128)] = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.content is None and not self.tool_calls:
            raise ValueError("content is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        """The message as chat templates know it; `developer` is what newer clients call the system."""
        values = self.model_dump(exclude_none=True)
        if values["role"] == "developer":
            values["role"] = "system"
        return {**values, "content": self.content or ""}


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True), at_most(MAX_MESSAGES)]


class ChatPrompt(BaseModel):
    """How messages become a prompt."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Scalars = Field(None, description="Names for the chat template, such as enable_thinking.")

    @property
    def generation_prompt(self) -> bool:
        """Whether the template adds the start of an answer; not by default where the last message is continued."""
        given = self.add_generation_prompt
        return not self.continue_final_message if given is None else given

    @model_validator(mode="after")
    def _check_prompt(self) -> ChatPrompt:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        return self


class ChatRequest(SamplingBody, ChatPrompt):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS, description="The rest of the context by default.")
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_TOKENS)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    @model_validator(mode="after")
    def _check(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self


class TokenizeRequest(Body, ChatPrompt):
    """Body of POST /tokenize: a text, or messages."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either prompt or messages")
        return self


class DetokenizeRequest(Body):
    """Body of POST /detokenize."""

    tokens: Annotated[TokenIds, at_most(MAX_TOKENIZE_IDS)]
