"""Prints one request per field, form and value of the request types of `openai` and `anthropic`. Client process.

A line is a JSON object: `route`, `path` (the field, with the kinds of the objects around it), `body`. Each object holds
what its type requires and one field more. A type is expanded once per route.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from anthropic.types.beta import message_create_params as messages
from openai.types import completion_create_params as completions
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chats
from openai.types.responses import response_create_params as responses
from typing_extensions import is_typeddict

HELLO = {"role": "user", "content": "Hello"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "x", "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
DATA = "data:image/png;base64,iVBORw0KGgo="


class Route(NamedTuple):
    """A route, its type of requests, the smallest body, and further fields that some field needs."""

    path: str
    request: type
    least: dict[str, Any]
    needs: dict[str, dict[str, Any]]


TOOLS = {"tools": [CHAT_TOOL]}
ROUTES = [
    Route(
        "/v1/chat/completions",
        chats.CompletionCreateParamsBase,
        {"messages": [HELLO], "max_tokens": 1},
        {
            "tool_choice": TOOLS,
            "parallel_tool_calls": TOOLS,
            "top_logprobs": {"logprobs": True},
            "stream_options": {"stream": True},
        },
    ),
    Route(
        "/v1/completions",
        completions.CompletionCreateParamsBase,
        {"prompt": "Hello", "max_tokens": 1},
        {"stream_options": {"stream": True}},
    ),
    Route("/v1/embeddings", embeddings.EmbeddingCreateParams, {"input": "Hello"}, {}),
    Route(
        "/v1/responses",
        responses.ResponseCreateParamsBase,
        {"input": "Hello", "max_output_tokens": 1},
        {
            "tool_choice": {"tools": [{"type": "function", **FUNCTION}]},
            "top_logprobs": {"include": ["message.output_text.logprobs"]},
            "stream_options": {"stream": True},
        },
    ),
    Route(
        "/v1/messages",
        messages.MessageCreateParamsBase,
        {"messages": [HELLO], "max_tokens": 1},
        {"tool_choice": {"tools": [{"name": "x", "input_schema": SCHEMA}]}},
    ),
]
# Conversations end with a question.
CONVERSATIONS = {"messages", "input"}
QUALIFIERS = {"Required", "NotRequired", "Annotated"}
TEXTS = {
    "url": DATA,
    "image_url": DATA,
    "data": "eA==",
    "media_type": "image/png",
    "arguments": "{}",
}
SCALARS: dict[Any, Any] = {str: "x", int: 1, float: 0.5, bool: True, object: "x", Any: "x"}
MAPPINGS = {"schema": SCHEMA, "parameters": SCHEMA, "input_schema": SCHEMA, "logit_bias": {"5": 1}}


class Walk:
    """The values of the types of one route."""

    def __init__(self) -> None:
        self._expanded: set[type] = set()

    def values(self, kind: Any, name: str) -> Iterator[tuple[str, Any]]:
        """Values of a type, each with the path that it tries; `name` is the field's."""
        origin = get_origin(kind)
        if getattr(origin, "__name__", "") in QUALIFIERS:
            yield from self.values(get_args(kind)[0], name)
        elif origin in (Union, types.UnionType):
            for each in get_args(kind):
                yield from self.values(each, name)
        elif origin is Literal:
            yield from ((f"={value}", value) for value in get_args(kind))
        elif is_typeddict(kind):
            yield from self._object(kind)
        elif isinstance(origin, type) and issubclass(origin, Iterable):
            if name in MAPPINGS:
                yield "", MAPPINGS[name]
            elif len(get_args(kind)) == 2:
                yield from self._mapping(kind, name)
            else:
                yield from (
                    (f"[]{path}", [value]) for path, value in self.values(get_args(kind)[0], name)
                )
        elif kind is str:
            yield "", TEXTS.get(name, "x")
        elif kind in SCALARS:
            yield "", MAPPINGS.get(name, SCALARS[kind])

    def _mapping(self, kind: Any, name: str) -> Iterator[tuple[str, Any]]:
        if name in MAPPINGS:
            yield "", MAPPINGS[name]
            return
        for path, value in self.values(get_args(kind)[1], name):
            yield f".*{path}", {"k": value}

    def _object(self, kind: type) -> Iterator[tuple[str, Any]]:
        least, label = smallest(kind)
        yield f"<{label}>", least
        if kind in self._expanded:
            return
        self._expanded.add(kind)
        for name, hint in hints(kind).items():
            if name == "type":
                continue
            for path, value in self.values(hint, name):
                yield f"<{label}>.{name}{path}", {**least, name: value}


def hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def smallest(kind: type) -> tuple[dict[str, Any], str]:
    """The object with its required fields, and its name: its `type` or `role`, or the type's name."""
    found = {
        name: next(Walk().values(hint, name))[1]
        for name, hint in hints(kind).items()
        if getattr(get_origin(hint), "__name__", str(get_origin(hint))).endswith("Required")
    }
    own = [name for name in ("type", "role") if isinstance(found.get(name), str)]
    return found, str(found[own[0]]) if own else kind.__name__


def requests(route: Route) -> Iterator[dict[str, Any]]:
    for name, hint in hints(route.request).items():
        if name == "model":
            continue
        walk = Walk()
        for path, value in walk.values(hint, name):
            is_talk = name in CONVERSATIONS and isinstance(value, list)
            whole = [*value, HELLO] if is_talk and isinstance(value[0], dict) else value
            body = {**route.least, **route.needs.get(name, {}), name: whole}
            if name == "max_completion_tokens":
                del body["max_tokens"]
            yield {"route": route.path, "path": name + path, "body": body}


for one in ROUTES:
    for request in requests(one):
        print(json.dumps(request))
