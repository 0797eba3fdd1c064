"""The events of an answer as output items, whole or as server-sent events. Front end."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
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
from tenonry_routes.responses.text_logprobs import TextLogprobs
from tenonry_routes.responses.tools import OwnName

_encode = msgspec.json.Encoder().encode
ECHOED = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "reasoning": {"effort": None, "summary": None},
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "user": None,
}
CONTENT = {"message": "output_text", "reasoning": "reasoning_text"}
PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


class Items:
    """The output items so far. At most one is open."""

    def __init__(self, new_call_id: Callable[[], str], own_names: Mapping[str, OwnName]) -> None:
        self.done: list[dict[str, Any]] = []
        self.open: dict[str, Any] | None = None
        self._new_call_id = new_call_id
        self._own_names = own_names

    @property
    def index(self) -> int:
        """The place of the open item."""
        return len(self.done)

    def begin(self, kind: str, name: str = "", call_id: str = "") -> dict[str, Any]:
        """Open an item; none is open."""
        item: dict[str, Any] = {"id": f"{PREFIXES[kind]}_{secrets.token_hex(16)}", "type": kind}
        item["status"] = "in_progress"
        if kind == "function_call":
            item |= {"call_id": call_id or self._new_call_id(), "name": name, "arguments": ""}
            item |= self._own_names[name]._asdict() if name in self._own_names else {}
        elif kind == "message":
            item |= {"role": "assistant", "content": []}
        else:
            item |= {"summary": [], "content": []}
        self.open = item
        return item

    def end(self, status: str = "completed") -> dict[str, Any]:
        """Close the open item."""
        item = self.open
        if item is None:
            raise RuntimeError("no item is open")
        item["status"] = status
        self.done.append(item)
        self.open = None
        return item


def content_part(kind: str, text: str) -> dict[str, Any]:
    """The content of an item of this kind."""
    part: dict[str, Any] = {"type": CONTENT[kind], "text": text}
    return part | ({"annotations": [], "logprobs": []} if kind == "message" else {})


def response_of(answer: Any, body: Mapping[str, Any], items: Items, status: str) -> dict[str, Any]:
    """The response object, without usage."""
    echoed = {
        name: body.get(name) if body.get(name) is not None else default
        for name, default in ECHOED.items()
    }
    return {
        "id": answer.id.replace("chatcmpl-", "resp_"),
        "object": "response",
        "created_at": answer.created,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": answer.model,
        "output": items.done,
        "previous_response_id": None,
        "store": False,
        "truncation": "disabled",
        "usage": None,
        **echoed,
    }


class ResponseWriter:
    """Turns the parts of an answer into events, in the documented order; `items` collect their results.

    `count_text`: tokens of a text. `own_names`: of functions in namespaces, by the model's names.
    """

    def __init__(
        self,
        answer: Any,
        body: Mapping[str, Any],
        count_text: Callable[[str], int],
        own_names: Mapping[str, OwnName] | None = None,
    ) -> None:
        self.items = Items(answer.new_call_id, own_names or {})
        self._answer = answer
        self._body = body
        self._count_text = count_text
        self._sequence = 0
        self._logprobs = TextLogprobs()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The events as the answer comes."""
        begun = False
        async for part in self._answer.parts():
            data = b"" if begun else self._start()
            begun = True
            data += self.part(part)
            if part.finish_reason is not None:
                response = self.response(part)
                data += self._event(f"response.{response['status']}", response=response)
            if data:
                yield data

    def failed(self, code: str | None, message: str) -> bytes:
        """The events of an error after the start."""
        response = response_of(self._answer, self._body, self.items, "failed")
        response["error"] = {"code": code or "server_error", "message": message}
        return self._event("response.failed", response=response)

    def _start(self) -> bytes:
        response = response_of(self._answer, self._body, self.items, "in_progress")
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def part(self, part: Any) -> bytes:
        """Events of a part, its end included, except for the last one of the response."""
        self._logprobs.add(part.logprobs)
        data = b"".join([self._one(event) for event in part.events])
        if part.finish_reason is not None and self.items.open is not None:
            data += self._end("incomplete" if part.finish_reason == "length" else "completed")
        return data

    def response(self, part: Any) -> dict[str, Any]:
        """The whole response after its last part."""
        is_cut = part.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        if part.finish_reason == "abort":
            status = "failed"
        response = response_of(self._answer, self._body, self.items, status)
        if is_cut:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if status == "failed":
            response["error"] = {"code": "server_error", "message": "the server ended the request"}
        reasoning = [
            entry["text"]
            for item in self.items.done
            if item["type"] == "reasoning"
            for entry in item["content"]
        ]
        response["usage"] = {
            "input_tokens": part.prompt_tokens,
            "input_tokens_details": {"cached_tokens": part.cached_tokens},
            "output_tokens": part.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": self._count_text("".join(reasoning))},
            "total_tokens": part.prompt_tokens + part.completion_tokens,
        }
        if part.weight_version:
            response["weight_version"] = part.weight_version
        return response

    def _event(self, kind: str, **fields: Any) -> bytes:
        number = self._sequence
        self._sequence += 1
        data = _encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)

    def _one(self, event: Event) -> bytes:
        if isinstance(event, TextDelta):
            return self._text("message", event.text)
        if isinstance(event, ReasoningDelta):
            return self._text("reasoning", event.text)
        if isinstance(event, CallStart):
            return self._close() + self._begin("function_call", event.name, event.call_id)
        if isinstance(event, CallArguments):
            return self._arguments(event.text)
        return self._end("completed") if isinstance(event, CallEnd) else b""

    def _begin(self, kind: str, name: str = "", call_id: str = "") -> bytes:
        item = self.items.begin(kind, name, call_id)
        data = self._event("response.output_item.added", output_index=self.items.index, item=item)
        if kind in CONTENT:
            part = content_part(kind, "")
            data += self._event(
                "response.content_part.added", **self._place(item), content_index=0, part=part
            )
            item["content"].append(part)
        return data

    def _place(self, item: Mapping[str, Any]) -> dict[str, Any]:
        return {"item_id": item["id"], "output_index": self.items.index}

    def _text(self, kind: str, text: str) -> bytes:
        data = b""
        if self.items.open is None or self.items.open["type"] != kind:
            data = self._close() + self._begin(kind)
        content = self._opened()["content"][0]
        content["text"] += text
        logprobs = self._logprobs.take(text)
        more: dict[str, Any] = {}
        if kind == "message":
            content["logprobs"] += logprobs
            more["logprobs"] = logprobs
        item = self._opened()
        return data + self._event(
            f"response.{CONTENT[kind]}.delta",
            **self._place(item),
            content_index=0,
            delta=text,
            **more,
        )

    def _arguments(self, text: str) -> bytes:
        item = self._opened()
        item["arguments"] += text
        return self._event(
            "response.function_call_arguments.delta", **self._place(item), delta=text
        )

    def _opened(self) -> dict[str, Any]:
        if self.items.open is None:
            raise RuntimeError("no item is open")
        return self.items.open

    def _close(self) -> bytes:
        return self._end("completed") if self.items.open is not None else b""

    def _end(self, status: str) -> bytes:
        item = self._opened()
        place = self._place(item)
        kind = item["type"]
        if kind in CONTENT:
            part = item["content"][0]
            more: dict[str, Any] = {}
            if kind == "message":
                more["logprobs"] = part["logprobs"]
            data = self._event(
                f"response.{CONTENT[kind]}.done",
                **place,
                content_index=0,
                text=part["text"],
                **more,
            )
            data += self._event("response.content_part.done", **place, content_index=0, part=part)
        else:
            data = self._event(
                "response.function_call_arguments.done",
                **place,
                name=item["name"],
                arguments=item["arguments"],
            )
        item = self.items.end(status)
        index = place["output_index"]
        return data + self._event("response.output_item.done", output_index=index, item=item)
