"""Brings chat messages into the form that a template reads: plain data, text where it wants text. Front end."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes

from tenonry.errors import RequestError

MAX_DEPTH = 64
IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
TEXT_TYPES = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
REASONING = ("reasoning_content", "thinking", "reasoning")
FORM_TESTS = frozenset({"string", "iterable", "sequence", "mapping"})


class ChatImages:
    """The images of one chat, in order. `most` of them may be there; `token` is the text that stands for each."""

    def __init__(self, most: int, token: str) -> None:
        self.token = token
        self._most = most
        self.urls: list[tuple[str, str]] = []  # and the field that each stands in

    def add(self, part: dict[str, Any], where: str) -> None:
        """Raises RequestError for a part without URL, and for one more than may be there."""
        given = part.get("image_url", part.get("url"))
        url = given.get("url") if isinstance(given, dict) else given
        if not isinstance(url, str):
            raise RequestError(
                f'{where} must hold {{"image_url": {{"url": …}}}}, a data: or https: URL', where
            )
        if len(self.urls) == self._most:
            raise RequestError(
                f"{where}: the messages hold more than max_images={self._most} images; leave some out",
                where,
            )
        self.urls.append((f"{where}.image_url", url))


class ContentForm(enum.Enum):
    """What a template makes of `message.content`: prints it, loops over its parts, or looks which of the two it is."""

    TEXT = "text"
    PARTS = "parts"
    EITHER = "either"


def content_form(tree: nodes.Template) -> ContentForm:
    """The form of content that the template of this syntax tree wants: a loop over the content asks for parts."""
    names = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name) and _is_content(node.node, set())
    }
    if not any(_is_content(node.iter, names) for node in tree.find_all(nodes.For)):
        return ContentForm.TEXT
    tested = (node for node in tree.find_all(nodes.Test) if node.name in FORM_TESTS)
    return (
        ContentForm.EITHER
        if any(_is_content(node.node, names) for node in tested)
        else ContentForm.PARTS
    )


def _is_content(node: nodes.Node | None, names: set[str]) -> bool:
    """Whether an expression is `message.content` in either spelling, or a variable that holds it; filters aside."""
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return isinstance(node, nodes.Name) and node.name in names


def normalise_messages(
    messages: Any, form: ContentForm, *, max_messages: int, images: ChatImages | None = None
) -> list[dict[str, Any]]:
    """Fresh messages of plain data; the caller's are not touched. Raises RequestError that names the message.

    `images` gets those that the messages hold; None where the model is shown none.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise RequestError(f"messages must be a list, not a {type(messages).__name__}", "messages")
    if not messages:
        raise RequestError(
            "messages is empty; give at least one message, such as a user's", "messages"
        )
    if len(messages) > max_messages:
        raise RequestError(
            f"messages has {len(messages)} entries; at most {max_messages} are allowed", "messages"
        )
    return [
        _normalise(plain(message), form, f"messages[{index}]", images)
        for index, message in enumerate(messages)
    ]


def _normalise(
    given: Any, form: ContentForm, where: str, images: ChatImages | None
) -> dict[str, Any]:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise RequestError(f"{where} must be an object with 'role' (a string) and 'content'", where)
    # clients send null for what does not apply; templates print it as "None"
    message: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    reasoning = next((message[key] for key in REASONING if key in message), None)
    if reasoning is not None:
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    if "content" in message:
        message["content"] = _content(message["content"], form, f"{where}.content", images)
    if "tool_calls" in message:
        message["tool_calls"] = list(_tool_calls(message["tool_calls"], f"{where}.tool_calls"))
    return message


def _content(content: Any, form: ContentForm, where: str, images: ChatImages | None) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if form is ContentForm.PARTS else content
    if not isinstance(content, list):
        raise RequestError(
            f"{where} must be a string or a list of parts, not a {type(content).__name__}", where
        )
    parts = [_part(part, f"{where}[{index}]", images) for index, part in enumerate(content)]
    if form is not ContentForm.TEXT:
        return parts
    token = images.token if images is not None else ""
    return "\n".join(part.get("text", token) for part in parts)


def _part(part: Any, where: str, images: ChatImages | None) -> dict[str, Any]:
    """A part as templates know it: {"type": "text", "text": …} or {"type": "image"}."""
    kind = part.get("type") if isinstance(part, dict) else None
    if images is None or not _is_image(kind):
        return {"type": "text", "text": _part_text(part, kind, where)}
    images.add(part, where)
    return {"type": "image"}


def _is_image(kind: Any) -> bool:
    return isinstance(kind, str) and kind in IMAGE_TYPES


def _part_text(part: Any, kind: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(kind, str) or kind not in TEXT_TYPES:
        what = f"type {kind!r}" if kind else f"a {type(part).__name__}"
        hint = "; images are read where the server runs with --max-images" * _is_image(kind)
        raise RequestError(
            f'{where} is {what}; only text is supported: {{"type": "text", "text": …}}{hint}', where
        )
    text = part.get(TEXT_TYPES[kind])
    if not isinstance(text, str):
        raise RequestError(
            f"{where}.{TEXT_TYPES[kind]} must be a string, not a {type(text).__name__}", where
        )
    return text


def _tool_calls(calls: Any, where: str) -> Iterator[Any]:
    """Tool calls with their arguments as objects: clients send them as JSON text, templates print them in parts."""
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list, not a {type(calls).__name__}", where)
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError(f"{where}[{index}] must be an object with 'function'", where)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                raise RequestError(
                    f"{where}[{index}].function.arguments is not valid JSON", where
                ) from None
        yield {**call, "function": {**function, "arguments": arguments}}


def plain(value: Any, depth: int = 0) -> Any:
    """A copy made of None, bool, int, float, str, list and dict alone: an object's methods could act in a template.

    pydantic models are taken apart. Raises RequestError for any other type, and below `MAX_DEPTH` levels.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"messages are nested more than {MAX_DEPTH} levels deep", "messages")
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, str):  # an enum's or another subclass's value, without its methods
        return str.__str__(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump(), depth + 1)
    raise RequestError(
        f"messages hold a {type(value).__name__}; only JSON values and pydantic models can be rendered",
        "messages",
    )
