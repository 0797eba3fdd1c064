"""Converts chat messages to the forms that a template reads, as plain data. Front end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tenonry.errors import RequestError
from tenonry_io_text.assistant import template_answer, without_thinking
from tenonry_io_text.calls import template_calls, template_id
from tenonry_io_text.forms import ContentForm, TemplateForms
from tenonry_io_text.message_forms import todays_form
from tenonry_io_text.plain import plain

IMAGE_TYPES = frozenset({"image_url", "input_image", "image"})
TEXT_TYPES = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# "low" reduces an image before the model sees it; the others leave it to the model's image processor.
DETAILS = ("auto", "low", "high", "original")
Message = dict[str, Any]


class ChatImage(NamedTuple):
    """One image of a chat: its field, its URL, and its requested detail."""

    where: str
    url: str
    detail: str


class ChatImages:
    """The images of one chat, in order, as `found`. `most`: maximum number; `token`: placeholder text of each."""

    def __init__(self, most: int, token: str) -> None:
        self.token = token
        self._most = most
        self.found: list[ChatImage] = []

    def add(self, part: dict[str, Any], where: str) -> None:
        """Raises RequestError for a part without URL or with an unknown detail, and for more than may be there."""
        given = part.get("image_url", part.get("url"))
        holder = given if isinstance(given, dict) else part
        url = given.get("url") if isinstance(given, dict) else given
        if not isinstance(url, str) or not url.strip():
            raise RequestError(
                f'{where} must hold {{"image_url": {{"url": …}}}}, a data: or https: URL', where
            )
        detail = holder.get("detail") or "auto"
        if detail not in DETAILS:
            raise RequestError(
                f"{where}.image_url.detail={detail!r:.40} must be one of {', '.join(DETAILS)}",
                f"{where}.image_url.detail",
            )
        if len(self.found) == self._most:
            raise RequestError(
                f"{where}: the messages hold more than max_images={self._most} images; leave some out",
                where,
            )
        self.found.append(ChatImage(f"{where}.image_url", url, detail))


def normalise_messages(
    messages: Any, forms: TemplateForms, *, max_messages: int, images: ChatImages | None = None
) -> list[Message]:
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
        _normalise(plain(message), forms, f"messages[{index}]", images)
        for index, message in enumerate(messages)
    ]


def _normalise(given: Any, forms: TemplateForms, where: str, images: ChatImages | None) -> Message:
    if not isinstance(given, dict) or not isinstance(given.get("role"), str):
        raise RequestError(f"{where} must be an object with 'role' (a string) and 'content'", where)
    # clients send null for what does not apply; templates print it as "None"
    message: Message = todays_form(
        {key: value for key, value in given.items() if value is not None}
    )
    is_answer = message["role"] == "assistant"
    if is_answer:
        message = without_thinking(message)
    if message.get("tool_calls") == []:
        del message["tool_calls"]
    if "content" in message:
        form = forms.of_role(message["role"])
        message["content"] = _content(message["content"], form, f"{where}.content", images)
    if "tool_calls" in message:
        calls = template_calls(message["tool_calls"], forms, f"{where}.tool_calls")
        message["tool_calls"] = list(calls)
    if "tool_call_id" in message:
        message["tool_call_id"] = template_id(message["tool_call_id"], forms)
    return template_answer(message, given, forms) if is_answer else message


def _content(content: Any, form: ContentForm, where: str, images: ChatImages | None) -> Any:
    if isinstance(content, str):
        return form.of_text(content)
    if not isinstance(content, list):
        raise RequestError(
            f"{where} must be a string or a list of parts, not a {type(content).__name__}", where
        )
    parts = [_part(part, f"{where}[{index}]", images) for index, part in enumerate(content)]
    if form in {ContentForm.PARTS, ContentForm.EITHER}:
        return parts
    token = images.token if images is not None else ""
    return form.of_text("\n".join(part.get("text", token) for part in parts))


def _part(part: Any, where: str, images: ChatImages | None) -> dict[str, Any]:
    """A part in the form of templates: {"type": "text", "text": …} or {"type": "image"}."""
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
    if kind is None and isinstance(part, dict) and "text" in part:
        kind = "text"
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
