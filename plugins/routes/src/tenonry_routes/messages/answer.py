"""The events of an answer as content blocks, whole or as server-sent events. Front end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from tenonry_output_parsers.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Event,
    ReasoningDelta,
    TextDelta,
)

_encode = msgspec.json.Encoder().encode
STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def event(kind: str, **fields: Any) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


def usage_of(part: Any) -> dict[str, int]:
    """Tokens, as this API counts them: those from the prefix cache separately."""
    return {
        "input_tokens": part.prompt_tokens - part.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": part.cached_tokens,
        "output_tokens": part.completion_tokens,
    }


def version_of(part: Any) -> dict[str, str]:
    """The version of the weights that made the newest tokens, unless they are those of the start."""
    return {"weight_version": part.weight_version} if part.weight_version else {}


def ending(part: Any) -> dict[str, str | None]:
    """Stop reason of the answer."""
    if part.stop_reason is not None and part.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": part.stop_reason}
    return {
        "stop_reason": STOP_REASONS.get(part.finish_reason or "", "end_turn"),
        "stop_sequence": None,
    }


def message_of(answer: Any, content: list[Any]) -> dict[str, Any]:
    """The message, except its stop reason."""
    return {
        "id": answer.id.replace("chatcmpl-", "msg_"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def whole_message(answer: Any, parts: list[Any]) -> dict[str, Any]:
    """The whole answer."""
    content: list[dict[str, Any]] = []
    for part in parts:
        for one in part.events:
            _add(content, one, answer.new_call_id)
    for block in content:
        if block["type"] == "tool_use":
            block["input"] = _input(block["input"])
    return {
        **message_of(answer, content),
        **ending(parts[-1]),
        "usage": usage_of(parts[-1]),
        **version_of(parts[-1]),
    }


def _add(content: list[dict[str, Any]], one: Event, new_call_id: Callable[[], str]) -> None:
    last = content[-1] if content else {"type": ""}
    if isinstance(one, CallArguments):
        last["input"] += one.text
    elif isinstance(one, CallStart):
        content.append(tool_use(one.name, one.call_id or new_call_id(), ""))
    elif isinstance(one, TextDelta | ReasoningDelta):
        name = "text" if isinstance(one, TextDelta) else "thinking"
        if last["type"] != name:
            last = empty_block(name)
            content.append(last)
        last[name] += one.text


def _input(text: str) -> Any:
    """The arguments of a call; those that are no JSON object are shown as such."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"INVALID_JSON": text}


def empty_block(kind: str) -> dict[str, Any]:
    """A block of text, or of thinking. This server signs no thinking."""
    return {"type": kind, kind: ""} | ({"signature": ""} if kind == "thinking" else {})


def tool_use(name: str, call_id: str, value: Any) -> dict[str, Any]:
    """A call."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": value}


class MessageStream:
    """An answer as events in the documented order. One content block is open at a time."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self._index = -1
        self._open = ""

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events as the answer comes."""
        begun = False
        async for part in self._answer.parts():
            data = b"" if begun else self._start(part)
            begun = True
            data += b"".join([self._event(one) for one in part.events])
            if part.finish_reason is not None:
                data += self._close() + self._end(part)
            if data:
                yield data

    def _start(self, part: Any) -> bytes:
        message = message_of(self._answer, [])
        message["usage"] = {**usage_of(part), "output_tokens": 0}
        message |= version_of(part)
        return event("message_start", message=message) + event("ping")

    def _end(self, part: Any) -> bytes:
        usage = usage_of(part)
        return event("message_delta", delta=ending(part), usage=usage, **version_of(part)) + event(
            "message_stop"
        )

    def _event(self, one: Event) -> bytes:
        if isinstance(one, TextDelta):
            begun = self._begin("text")
            return begun + self._delta("text_delta", text=one.text)
        if isinstance(one, ReasoningDelta):
            begun = self._begin("thinking")
            return begun + self._delta("thinking_delta", thinking=one.text)
        if isinstance(one, CallStart):
            block = tool_use(one.name, one.call_id or self._answer.new_call_id(), {})
            return self._close() + self._begin("tool_use", block)
        if isinstance(one, CallArguments):
            return self._delta("input_json_delta", partial_json=one.text)
        return self._close() if isinstance(one, CallEnd) else b""

    def _begin(self, kind: str, block: dict[str, Any] | None = None) -> bytes:
        """Open a block, unless one of this kind is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        self._index += 1
        self._open = kind
        shown = block or empty_block(kind)
        return closed + event("content_block_start", index=self._index, content_block=shown)

    def _delta(self, kind: str, **fields: str) -> bytes:
        return event("content_block_delta", index=self._index, delta={"type": kind, **fields})

    def _close(self) -> bytes:
        if not self._open:
            return b""
        lead = b""
        if self._open == "thinking":
            lead = self._delta("signature_delta", signature="")
        self._open = ""
        return lead + event("content_block_stop", index=self._index)
