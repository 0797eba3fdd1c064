"""The messages of a chat as a request holds them, and as an IO processor takes them. Front end.

Everything that OpenAI documents of earlier messages is read, older forms included: agents replay whole conversations.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tenonry_openai_server.protocol.parse import explain

MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of the content of all messages of a chat, and tool calls
MAX_CALLS = 128  # of one message
IMAGES = frozenset({"image_url", "input_image"})
THINKING = frozenset({"thinking", "reasoning"})
TEXTS = frozenset({"text", "input_text", "output_text", "refusal"}) | THINKING
RESULTS = frozenset({"tool", "function"})  # roles
REASONING = ("reasoning_content", "reasoning", "thinking")


def _spend(info: ValidationInfo) -> None:
    """Count a part or a tool call; the context of a validation is an iterator over the remaining allowance."""
    if info.context is not None and next(info.context, None) is None:
        raise ValueError(f"the messages have more than {MAX_PARTS} parts and tool calls together")


Detail = Annotated[
    str, Field(max_length=64)
]  # the IO processor validates the values, and rejects others by name


class ImageUrl(BaseModel):
    """Location of an image."""

    model_config = ConfigDict(strict=True, extra="ignore")

    url: str
    detail: Detail | None = None


ThinkingTexts = Annotated[list[dict[str, str]], Field(max_length=MAX_MESSAGES)]


class Part(BaseModel):
    """A part of a message: text, thinking, or an image where the model is shown some."""

    model_config = ConfigDict(strict=True, extra="ignore")
    only_in_lists: ClassVar[bool] = True

    type: str = Field(max_length=64)
    text: str | None = None
    image_url: ImageUrl | str | None = None
    detail: Detail | None = None  # next to `image_url` if that is a text
    refusal: str | None = None
    thinking: str | ThinkingTexts | None = None
    reasoning: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, part: Any) -> Any:
        """A text is a part by itself; an object without a type is one if it has a text."""
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if isinstance(part, dict) and "text" in part and part.get("type") is None:
            return {**part, "type": "text"}
        return part

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> Part:
        _spend(info)
        if self.type in IMAGES:
            if self.image_url is None:
                raise ValueError(f"holds a part of type '{self.type}' without image_url")
            if not self.url.strip():
                raise ValueError(
                    f"holds a part of type '{self.type}' with an empty URL; send a data: or https: URL"
                )
        elif self.type not in TEXTS:
            raise ValueError(
                f"holds a part of type '{self.type}'; this server reads parts of type 'text' and 'image_url' only"
            )
        elif self.shown_text is None:
            name = self.type if self.type in {"refusal", *THINKING} else "text"
            raise ValueError(f"holds a part without {name}")
        return self

    @property
    def url(self) -> str:
        """Address of an image."""
        if isinstance(self.image_url, ImageUrl):
            return self.image_url.url
        return self.image_url or ""

    @property
    def shown_text(self) -> str | list[dict[str, str]] | None:
        """Text of a part that is no image; thinking may be a list of texts."""
        if self.type == "reasoning":
            return self.text if self.reasoning is None else self.reasoning
        return {"refusal": self.refusal, "thinking": self.thinking}.get(self.type, self.text)

    def for_template(self) -> dict[str, Any]:
        """The part as IO processors read it."""
        if self.type in IMAGES:
            inner = self.image_url if isinstance(self.image_url, ImageUrl) else self
            detail = {} if inner.detail is None else {"detail": inner.detail}
            return {"type": "image_url", "image_url": {"url": self.url, **detail}}
        kind = "thinking" if self.type in THINKING else "text"
        return {"type": kind, kind: self.shown_text or ""}


class Function(BaseModel):
    """The function that an earlier answer called; its arguments are any text, or any value of JSON."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(max_length=256)
    arguments: Any = ""


class CustomCall(BaseModel):
    """The custom tool that an earlier answer called."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str = Field(max_length=256)
    input: str = ""


class ToolCall(BaseModel):
    """A call in an earlier answer, of a function or of a custom tool."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str | None = Field(None, max_length=256)
    type: str | None = Field("function", max_length=64)
    function: Function | None = None
    custom: CustomCall | None = None

    @model_validator(mode="after")
    def _check(self, info: ValidationInfo) -> ToolCall:
        _spend(info)
        if self.function is None and self.custom is None:
            raise ValueError("function is missing")
        return self

    def for_template(self) -> dict[str, Any]:
        """The call in the form of chat templates: one of a function."""
        if self.function is not None:
            name, arguments = self.function.name, self.function.arguments
            arguments = "" if arguments is None else arguments
        else:
            custom = self.custom or CustomCall(name="")
            name, arguments = custom.name, {"input": custom.input}
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return call if self.id is None else {"id": self.id, **call}


Parts = Annotated[list[Part], Field(max_length=MAX_MESSAGES, fail_fast=True)]
ToolCalls = Annotated[list[ToolCall], Field(max_length=MAX_CALLS, fail_fast=True)]


class Message(BaseModel):
    """One message of a chat."""

    model_config = ConfigDict(strict=True, extra="ignore")

    role: str = Field(min_length=1, max_length=64)
    content: str | Parts | None = None
    name: str | None = Field(None, max_length=256)
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = Field(None, max_length=256)
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    function_call: Function | None = None
    # Names of Mistral and DeepSeek, and of Moonshot and Qwen, for an answer's beginning.
    prefix: bool | None = None
    partial: bool | None = None

    @field_validator("content", mode="before")
    @classmethod
    def _text_of_result(cls, content: Any, info: ValidationInfo) -> Any:
        """Results that are values of JSON become text."""
        if content is None or isinstance(content, str) or info.data.get("role") not in RESULTS:
            return content
        return content if _has_parts(content) else json.dumps(content, ensure_ascii=False)

    @field_validator("content")
    @classmethod
    def _check_parts(cls, content: Any, info: ValidationInfo) -> Any:
        if content == [] and info.data.get("role") not in {"assistant", "tool"}:
            raise ValueError("has no parts; send a text, or at least one part")
        return content

    @model_validator(mode="after")
    def _check(self) -> Message:
        if self.content is None and not self._may_be_empty:
            raise ValueError("content is missing")
        return self

    @property
    def _may_be_empty(self) -> bool:
        """Answers, and results of functions that return nothing."""
        return self.role in {"assistant", *RESULTS} or bool(self.tool_calls)

    @property
    def begins_answer(self) -> bool:
        """True if the answer continues this message as the last one."""
        return self.role == "assistant" and bool(self.prefix or self.partial)

    @property
    def has_images(self) -> bool:
        """True if any of its parts is an image."""
        return isinstance(self.content, list) and any(part.url for part in self.content)

    @property
    def num_chars(self) -> int:
        """Length of its content."""
        if isinstance(self.content, list):
            return sum(len(part.shown_text or "") for part in self.content)
        return len(self.content or "")

    def for_template(self) -> dict[str, Any]:
        """The message as IO processors read it: `developer` is the system, `function` a tool."""
        roles = {"developer": "system", "function": "tool"}
        content: Any = self.content
        if isinstance(content, list):
            content = [part.for_template() for part in content]
        message = {"role": roles.get(self.role, self.role), "content": content}
        for name in ("name", "tool_call_id", "refusal", *REASONING):
            if (value := getattr(self, name)) is not None:
                message[name] = value
        if calls := [call.for_template() for call in self._calls()]:
            message["tool_calls"] = calls
        return message

    def _calls(self) -> Iterator[ToolCall]:
        yield from self.tool_calls or ()
        if self.function_call is not None and not self.tool_calls:
            yield ToolCall(function=self.function_call)


def _has_parts(content: Any) -> bool:
    """Return True for a list that is empty, or has an object."""
    return isinstance(content, list) and (
        not content or any(isinstance(part, dict) for part in content)
    )


Messages = Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
_messages: TypeAdapter[list[Message]] = TypeAdapter(Messages)


def decode_messages(raw: msgspec.Raw) -> list[Message] | None:
    """The messages of a chat, straight from JSON, or null. Raises APIError."""
    if bytes(memoryview(raw)[:4]) == b"null":
        return None
    try:
        return _messages.validate_json(bytes(raw), strict=True, context=iter(range(MAX_PARTS)))
    except ValidationError as error:
        raise explain(error, {"messages": raw}, "messages") from None
