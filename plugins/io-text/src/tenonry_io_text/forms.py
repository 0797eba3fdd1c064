"""Forms in which a chat template reads messages, found by rendering short conversations with it. Front end, once per
template.

Templates differ in ways that nothing declares: content as a string or as parts, arguments of calls as an object or as
JSON text, null or "" as the content of a message with calls, reasoning as a field or as a part. Marked texts reveal
what is printed.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tenonry.errors import RequestError
from tenonry_io_text.sandbox import ChatTemplate, TemplateTimeout

FIRST, SECOND = "Markone1", "Marktwo2"
BOTH = f"{FIRST} {SECOND}"
NAME = "get_marked_thing"
LONG_ID, SHORT_ID = "call_0123456789abcdef", "abcdefgh9"
REASONING = ("reasoning_content", "reasoning", "thinking", "thought")
MAX_CHARS = 1 << 20
TOOL = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Returns the thing.",
        "parameters": {
            "type": "object",
            "properties": {"key": {"type": "string", "description": "Its key."}},
            "required": ["key"],
        },
    },
}
Message = dict[str, Any]


class ContentForm(enum.Enum):
    """Form of `message.content`: a string, a list of parts, either of the two, or a list of one part."""

    TEXT = "text"
    PARTS = "parts"
    ONE_PART = "one part"
    EITHER = "either"

    def of_text(self, text: str) -> str | list[dict[str, str]]:
        """A text in this form."""
        is_list = self in {ContentForm.PARTS, ContentForm.ONE_PART}
        return text_parts(text) if is_list else text


class EmptyContent(enum.Enum):
    """Content of a message that holds calls and no text."""

    NULL = "null"
    TEXT = "text"
    ABSENT = "absent"
    PART = "part"

    def put(self, message: Message) -> Message:
        """The message with this content."""
        rest = {key: value for key, value in message.items() if key != "content"}
        if self is EmptyContent.ABSENT:
            return rest
        contents = {
            EmptyContent.NULL: None,
            EmptyContent.TEXT: "",
            EmptyContent.PART: text_parts(""),
        }
        return {**rest, "content": contents[self]}


@dataclass(frozen=True, slots=True)
class TemplateForms:
    """Forms of one template; the defaults suit one that shows neither calls nor reasoning.

    `content`: by role. `empty`: contents with which calls are shown, the preferred one first. `takes_objects`,
    `takes_text`: arguments as objects, and as text that is no JSON. `short_ids`: call ids must have nine letters and
    digits. `thinking_parts`: reasoning is a part of the content. `merges_thinking`: of content and reasoning, a message
    with calls may have one.
    """

    content: Mapping[str, ContentForm] = field(default_factory=dict)
    empty: tuple[EmptyContent, ...] = (EmptyContent.TEXT,)
    takes_objects: bool = True
    takes_text: bool = True
    short_ids: bool = False
    thinking_parts: bool = False
    merges_thinking: bool = False

    def of_role(self, role: str) -> ContentForm:
        """Form of content of a role; a role that was not probed is read as the user's."""
        return self.content.get(role) or self.content.get("user", ContentForm.TEXT)


def find_forms(
    template: ChatTemplate, special_tokens: Mapping[str, str], *, with_tools: bool
) -> TemplateForms:
    """The forms of a template, of chats with tools or without. Raises TemplateTimeout."""
    return _Prober(template, special_tokens, [TOOL] if with_tools else None).forms()


class _Calls(NamedTuple):
    """Form of a message with one call."""

    call_id: str
    is_object: bool
    empty: EmptyContent

    def message(self) -> Message:
        arguments = {"key": FIRST} if self.is_object else f'{{"key": "{FIRST}'
        function = {"name": NAME, "arguments": arguments}
        call = {"id": self.call_id, "type": "function", "function": function}
        return self.empty.put({"role": "assistant", "tool_calls": [call]})


# the preferred ones first
CALLS = [
    _Calls(*form) for form in itertools.product((LONG_ID, SHORT_ID), (True, False), EmptyContent)
]


class _Prober:
    """Renders short conversations with one template."""

    def __init__(
        self, template: ChatTemplate, special_tokens: Mapping[str, str], tools: Any
    ) -> None:
        self._template = template
        self._values = {
            **special_tokens,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": False,
        }
        self._content = {"user": self._content_form([], "user")}
        self._user = self._message("user")
        self._num_none = self._text([self._user]).count("None")
        self._content["system"] = self._content_form([], "system", [self._user])
        self._content["assistant"] = self._content_form([self._user], "assistant")

    def forms(self) -> TemplateForms:
        thinking_parts = self._thinks_in_parts()
        calls = next(filter(self._shows_call, CALLS), None)
        if calls is None:
            is_list = isinstance(self._content["assistant"].of_text(""), list)
            empty = EmptyContent.PART if is_list else EmptyContent.TEXT
            return TemplateForms(self._content, empty=(empty,), thinking_parts=thinking_parts)
        before = [self._user, calls.message()]
        tool = self._content_form(before, "tool", tool_call_id=calls.call_id, name=NAME)
        shown = [each for each in EmptyContent if self._shows_call(calls._replace(empty=each))]
        return TemplateForms(
            {**self._content, "tool": tool},
            empty=tuple(shown),
            takes_objects=calls.is_object,
            takes_text=self._shows_call(calls._replace(is_object=False)),
            short_ids=calls.call_id == SHORT_ID,
            thinking_parts=thinking_parts,
            merges_thinking=self._merges_thinking(calls),
        )

    def _content_form(
        self, before: list[Message], role: str, after: Sequence[Message] = (), **fields: Any
    ) -> ContentForm:
        def shows(content: Any) -> bool:
            message = {"role": role, "content": content, **fields}
            return self._shows_marks([*before, message, *after])

        takes_text = shows(BOTH)
        if shows(text_parts(FIRST, SECOND)):
            return ContentForm.EITHER if takes_text else ContentForm.PARTS
        if not takes_text and shows(text_parts(BOTH)):
            return ContentForm.ONE_PART
        return ContentForm.TEXT

    def _message(self, role: str, text: str = "Hello.") -> Message:
        return {"role": role, "content": self._content[role].of_text(text)}

    def _shows_marks(self, messages: list[Message]) -> bool:
        """Return True if both marks are printed, and nothing of the object that holds them."""
        text = self._text(messages)
        start, end = text.find(FIRST), text.find(SECOND)
        return 0 <= start < end and "type" not in text[start:end]

    def _shows_call(self, form: _Calls) -> bool:
        text = self._text([self._user, form.message()])
        return FIRST in text and text.count("None") <= self._num_none

    def _thinks_in_parts(self) -> bool:
        named = {**self._message("assistant"), **dict.fromkeys(REASONING, FIRST)}
        if FIRST in self._text([self._user, named]):
            return False
        parts = [{"type": "thinking", "thinking": FIRST}, *text_parts(SECOND)]
        return self._shows_marks([self._user, {"role": "assistant", "content": parts}])

    def _merges_thinking(self, calls: _Calls) -> bool:
        spoken = {**calls.message(), **self._message("assistant")}
        both = {**spoken, **dict.fromkeys(REASONING, FIRST)}
        return bool(self._text([self._user, spoken])) and not self._text([self._user, both])

    def _text(self, messages: list[Message]) -> str:
        """The printed text; empty if the template rejects the messages."""
        try:
            return self._template.render(
                {**self._values, "messages": messages}, max_chars=MAX_CHARS
            )
        except TemplateTimeout:
            raise
        except RequestError:
            return ""


def text_parts(*texts: str) -> list[dict[str, str]]:
    """Content as parts."""
    return [{"type": "text", "text": text} for text in texts]
