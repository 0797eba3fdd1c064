"""A request of the Responses API as the fields of a chat. Front end.

Nothing is stored: a conversation comes whole in `input`. What would change the answer and cannot be honoured is refused
by name. Names that nothing here reads are judged by `names.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_TOKENS

PASSED = (
    "model", "temperature", "top_p", "parallel_tool_calls", "seed", "stop", "top_k", "min_p", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos",
    "include_stop_str_in_output", "skip_special_tokens", "bad_words", "allowed_token_ids", "extra_args",
    "truncate_prompt_tokens", "add_special_tokens", "priority", "cache_salt", "chat_template_kwargs",
    "structured_outputs",
)  # fmt: skip
# Accounting, storage and hints that change no answer of this server.
HARMLESS = frozenset({
    "store", "metadata", "user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "max_tool_calls",
})  # fmt: skip
READ = frozenset(
    {
        "input",
        "instructions",
        "max_output_tokens",
        "tools",
        "tool_choice",
        "reasoning",
        "text",
        "truncation",
        "include",
        "stream",
        "stream_options",
    }
)
REFUSED = {
    "previous_response_id": "nothing is stored; send the whole conversation as input",
    "conversation": "nothing is stored; send the whole conversation as input",
    "background": "answers are made while the client waits",
    "prompt": "there are no stored prompts; send the text",
    "top_logprobs": "this route has no log-probabilities; /v1/chat/completions has",
}
TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
MAX_ITEMS = 4096
Content = str | list[dict[str, Any]]


def refuse(param: str, message: str, code: str = "invalid_request") -> NoReturn:
    """Raises RequestError."""
    raise RequestError(f"{param}: {message}", param, code)


def chat_fields(body: Any) -> dict[str, Any]:
    """The chat that a request means. Raises RequestError that names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    _check_values(body)
    fields: dict[str, Any] = {name: body[name] for name in PASSED if body.get(name) is not None}
    system = body.get("instructions")
    if system is not None and not isinstance(system, str):
        refuse("instructions", "must be a text")
    lead = [{"role": "system", "content": system}] if system else []
    fields["messages"] = [*lead, *_messages(body.get("input"))]
    if body.get("max_output_tokens") is not None:
        fields["max_tokens"] = _count(body["max_output_tokens"])
    _add_tools(fields, body)
    _add_reasoning(fields, body.get("reasoning"))
    _add_format(fields, body.get("text"))
    return fields


def _check_values(body: Mapping[str, Any]) -> None:
    for name, value in body.items():
        if name in REFUSED and value not in (None, False, 0, ""):
            code = (
                "previous_response_not_found" if name == "previous_response_id" else "unsupported"
            )
            refuse(name, REFUSED[name], code)
    if not isinstance(body.get("stream"), bool | None):
        refuse("stream", "must be true or false")
    if not isinstance(body.get("stream_options"), dict | None):
        refuse("stream_options", "must be an object")
    include = [] if body.get("include") is None else body["include"]
    if not isinstance(include, list) or not all(isinstance(name, str) for name in include):
        refuse("include", "must be a list of texts")
    if body.get("truncation") not in (None, "disabled"):
        refuse("truncation", "inputs are never cut; leave it out, or say disabled", "unsupported")


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_TOKENS:
        refuse("max_output_tokens", f"must be a number of 1 to {MAX_TOKENS}, not {value!r:.40}")
    return int(value)


def _messages(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        refuse("input", "must be a text or a list of at least one item")
    if len(value) > MAX_ITEMS:
        refuse("input", f"has {len(value)} items; at most {MAX_ITEMS} are allowed")
    conversation = _Conversation()
    for place, item in enumerate(value):
        where = f"input.{place}"
        if not isinstance(item, dict):
            refuse(where, "must be an object")
        conversation.add(item, where)
    if not conversation.messages:
        refuse("input", "holds no message")
    return conversation.messages


class _Conversation:
    """Items become messages: reasoning, text and calls of one turn are one message of the assistant."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def add(self, item: Mapping[str, Any], where: str) -> None:
        """One more item. Raises RequestError for a kind that is not read."""
        kind = item.get("type", "message")
        if kind == "message":
            self._message(item, where)
        elif kind == "function_call":
            function = {
                "name": _text(item, where, "name"),
                "arguments": _text(item, where, "arguments"),
            }
            call = {"id": _text(item, where, "call_id"), "type": "function", "function": function}
            self._turn().setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(item.get("output"), f"{where}.output")
            result = {
                "role": "tool",
                "tool_call_id": _text(item, where, "call_id"),
                "content": content,
            }
            self.messages.append(result)
        elif kind == "reasoning":
            texts = _reasoning_texts(item.get("content"), f"{where}.content")
            if texts:
                self._turn()["reasoning_content"] = "".join(texts)
        else:
            refuse(f"{where}.type", f"{kind!r:.40} is not read here", "unsupported")

    def _message(self, item: Mapping[str, Any], where: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            refuse(f"{where}.role", "must be user, assistant, system or developer")
        content = _content(item.get("content"), f"{where}.content", images=role == "user")
        if role != "assistant":
            self.messages.append({"role": role, "content": content})
            return
        turn = self._turn()
        turn["content"] = "\n".join(filter(None, [turn["content"], content]))

    def _turn(self) -> dict[str, Any]:
        """The assistant's message that the next item belongs to."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
        return self.messages[-1]


def _reasoning_texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(where, "must be a list of parts")
    return [_text(part, f"{where}.{place}", "text") for place, part in enumerate(value)]


def _text(item: Any, where: str, name: str) -> str:
    text = item.get(name) if isinstance(item, dict) else None
    if not isinstance(text, str):
        refuse(f"{where}.{name}", "must be a text")
    return str(text)


def _content(value: Any, where: str, *, images: bool = True) -> Content:
    """A text; parts of text are joined, and stay apart where an image is among them."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        refuse(where, "must be a text or a list of parts")
    parts = [_part(part, f"{where}.{place}", images) for place, part in enumerate(value)]
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str, images: bool) -> dict[str, Any]:
    """A part as chats know it."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image" and images:
        return _image(part, where)
    if kind == "refusal":
        name = "refusal"
    elif kind in tuple(TEXT_PARTS):
        name = "text"
    else:
        what = "text and input_image" if images else "text"
        refuse(f"{where}.type", f"{kind!r:.40} is not read here; send {what}", "unsupported")
    return {"type": "text", "text": _text(part, where, name)}


def _image(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """An image as chats know it; how much of its detail is seen is the image processor's."""
    if part.get("file_id") is not None:
        refuse(f"{where}.file_id", "there are no files; send image_url", "unsupported")
    url = _text(part, where, "image_url")
    return {"type": "image_url", "image_url": {"url": url}}


def _add_tools(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        refuse("tools", "must be a list")
    found = []
    for place, tool in enumerate(tools or ()):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            refuse(
                f"tools.{place}.type", f"{kind!r:.40} is not offered; send functions", "unsupported"
            )
        names = ("name", "description", "parameters", "strict")
        function = {name: tool[name] for name in names if tool.get(name) is not None}
        found.append({"type": "function", "function": function})
    if found:
        fields["tools"] = found
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            kind = choice.get("type")
            refuse(
                "tool_choice.type", f"{kind!r:.40} is not offered; name a function", "unsupported"
            )
        choice = {"type": "function", "function": {"name": _text(choice, "tool_choice", "name")}}
    if choice is not None:
        fields["tool_choice"] = choice


def _add_reasoning(fields: dict[str, Any], reasoning: Any) -> None:
    if reasoning is None:
        return
    if not isinstance(reasoning, dict):
        refuse("reasoning", "must be an object")
    if reasoning.get("effort") is not None:
        fields["reasoning_effort"] = reasoning["effort"]


def _add_format(fields: dict[str, Any], text: Any) -> None:
    """`text.format` is `response_format` of a chat, with the schema one level higher."""
    form = text.get("format") if isinstance(text, dict) else None
    if text is not None and not isinstance(text, dict):
        refuse("text", "must be an object")
    if form is None:
        return
    kind = form.get("type") if isinstance(form, dict) else None
    if kind not in ("text", "json_object", "json_schema"):
        refuse("text.format.type", "must be text, json_object or json_schema")
    if kind == "json_schema":
        names = ("name", "description", "schema", "strict")
        schema = {name: form[name] for name in names if form.get(name) is not None}
        fields["response_format"] = {"type": kind, "json_schema": schema}
    elif kind == "json_object":
        fields["response_format"] = {"type": kind}
