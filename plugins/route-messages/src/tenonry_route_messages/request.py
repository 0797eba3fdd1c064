"""A request of the Messages API as the fields of a chat. Front end.

What would change the answer and cannot be honoured is refused by name. Names that nothing here reads are judged by
`names.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from tenonry.errors import RequestError
from tenonry.sampling_params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS

PASSED = (
    "model", "temperature", "top_p", "top_k", "stream", "seed", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "ignore_eos", "include_stop_str_in_output",
    "skip_special_tokens", "bad_words", "allowed_token_ids", "extra_args", "truncate_prompt_tokens",
    "add_special_tokens", "priority", "cache_salt", "chat_template_kwargs", "structured_outputs",
)  # fmt: skip
# Accounting, and hints that change no answer of this server.
HARMLESS = frozenset({
    "metadata", "service_tier", "betas", "inference_geo", "anthropic_version", "cache_control", "user_profile_id",
})  # fmt: skip
READ = frozenset({
    "max_tokens", "messages", "system", "stop_sequences", "tools", "tool_choice", "thinking", "output_config",
})  # fmt: skip
MAX_BLOCKS = 4096
MEDIA_TYPE = re.compile(r"image/[a-z0-9.+-]{1,32}")
Content = str | list[dict[str, Any]]
EFFORT = frozenset({"low", "medium", "high", "xhigh", "max"})


def refuse(param: str, message: str) -> NoReturn:
    """Raises RequestError."""
    raise RequestError(f"{param}: {message}", param)


def chat_fields(body: Any, *, needs_max_tokens: bool = True) -> dict[str, Any]:
    """The chat that a request means. Raises RequestError that names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    fields: dict[str, Any] = {
        name: body[name] for name in PASSED if name != "stream" and body.get(name) is not None
    }
    if not isinstance(body.get("model"), str):
        refuse("model", "is missing, or no text")
    if not isinstance(body.get("stream"), bool | None):
        refuse("stream", "must be true or false")
    if needs_max_tokens or body.get("max_tokens") is not None:
        fields["max_tokens"] = _max_tokens(body.get("max_tokens"))
    fields["messages"] = [*_system(body.get("system")), *_messages(body.get("messages"))]
    stop = body.get("stop_sequences")
    if stop is not None:
        _check_stop(stop)
        fields["stop"] = stop
    _add_tools(fields, body)
    _add_thinking(fields, body)
    return fields


def _check_stop(value: Any) -> None:
    texts = [value] if isinstance(value, str) else value
    is_valid = isinstance(texts, list) and len(texts) <= MAX_STOP_STRINGS
    if not is_valid or not all(_is_stop(text) for text in texts):
        refuse(
            "stop_sequences",
            f"must be a list of at most {MAX_STOP_STRINGS} texts of 1 to {MAX_STOP_STRING_CHARS} characters",
        )


def _is_stop(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_STOP_STRING_CHARS


def _max_tokens(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        refuse("max_tokens", f"must be a number of at least 1, not {value!r:.40}")
    return int(value)


def _system(value: Any) -> list[dict[str, Any]]:
    if value is None or value == "":
        return []
    return [{"role": "system", "content": _text_of(value, "system")}]


def _text_of(value: Any, where: str) -> str:
    """A text, or blocks of text joined."""
    if isinstance(value, str):
        return value
    texts = []
    for place, block in enumerate(_blocks(value, where)):
        if block.get("type") != "text":
            refuse(
                f"{where}.{place}.type", f"{block.get('type')!r:.40} is not read here; send text"
            )
        texts.append(_text(block, f"{where}.{place}"))
    return "\n".join(texts)


def _blocks(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        refuse(where, "must be a text or a list of content blocks")
    if len(value) > MAX_BLOCKS:
        refuse(where, f"has {len(value)} blocks; at most {MAX_BLOCKS} are allowed")
    return list(value)


def _text(block: Mapping[str, Any], where: str, name: str = "text") -> str:
    text = block.get(name)
    if not isinstance(text, str):
        refuse(f"{where}.{name}", "must be a text")
    return str(text)


def _messages(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not value:
        refuse("messages", "must be a list of at least one message")
    chat: list[dict[str, Any]] = []
    for place, message in enumerate(value):
        where = f"messages.{place}"
        role = None
        if isinstance(message, dict):
            role = message.get("role")
        if role not in ("user", "assistant", "system"):
            refuse(f"{where}.role", "must be user or assistant")
        content = message.get("content")
        if role == "system":
            chat += _system(content)
        elif isinstance(content, str):
            chat.append({"role": role, "content": content})
        elif role == "user":
            chat += _user(_blocks(content, f"{where}.content"), f"{where}.content")
        else:
            chat.append(_assistant(_blocks(content, f"{where}.content"), f"{where}.content"))
    return chat


def _user(blocks: list[dict[str, Any]], where: str) -> list[dict[str, Any]]:
    """Results of tools become messages of their own; they stand before the text."""
    results: list[dict[str, Any]] = []
    parts = []
    for place, block in enumerate(blocks):
        at = f"{where}.{place}"
        if block.get("type") == "tool_result":
            content = block.get("content")
            shown = "" if content is None else _shown(content, f"{at}.content")
            call_id = _text(block, at, "tool_use_id")
            result = {"role": "tool", "tool_call_id": call_id, "content": shown}
            results.append(result)
        else:
            parts.append(_part(block, at, "text, image and tool_result blocks"))
    if parts or not results:
        results.append({"role": "user", "content": _joined(parts)})
    return results


def _shown(value: Any, where: str) -> Content:
    """What a tool gave: a text, or blocks of text and images."""
    if isinstance(value, str):
        return value
    parts = [
        _part(block, f"{where}.{place}", "text and images")
        for place, block in enumerate(_blocks(value, where))
    ]
    return _joined(parts)


def _joined(parts: list[dict[str, Any]]) -> Content:
    """Texts as one; the parts as they are where an image is among them."""
    if any(part["type"] != "text" for part in parts):
        return parts
    return "\n".join(part["text"] for part in parts)


def _part(block: Mapping[str, Any], where: str, offered: str) -> dict[str, Any]:
    """A block of text, or an image, as chats know it."""
    kind = block.get("type")
    if kind == "text":
        return {"type": "text", "text": _text(block, where)}
    if kind != "image":
        refuse(f"{where}.type", f"{kind!r:.40} is not read here; send {offered}")
    url = _url(block.get("source"), f"{where}.source")
    return {"type": "image_url", "image_url": {"url": url}}


def _url(source: Any, where: str) -> str:
    """Where an image is, or the image itself."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind == "url":
        return _text(source, where, "url")
    if kind != "base64":
        refuse(f"{where}.type", f"{kind!r:.40} is not read here; send base64 or url")
    media_type = _text(source, where, "media_type")
    if not MEDIA_TYPE.fullmatch(media_type):
        refuse(f"{where}.media_type", f"{media_type!r:.40} is no type of an image, as image/png is")
    data = _text(source, where, "data")
    return f"data:{media_type};base64,{data}"


def _assistant(blocks: list[dict[str, Any]], where: str) -> dict[str, Any]:
    texts = []
    reasoning = []
    calls = []
    for place, block in enumerate(blocks):
        at = f"{where}.{place}"
        kind = block.get("type")
        if kind == "text":
            texts.append(_text(block, at))
        elif kind == "thinking":
            reasoning.append(_text(block, at, "thinking"))
        elif kind == "tool_use":
            function = {
                "name": _text(block, at, "name"),
                "arguments": json.dumps(block.get("input") or {}),
            }
            calls.append({"id": _text(block, at, "id"), "type": "function", "function": function})
        elif kind != "redacted_thinking":  # which only its author can read
            refuse(f"{at}.type", f"{kind!r:.40} is not read here; send text, thinking and tool_use")
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(texts)}
    if reasoning:
        message["reasoning_content"] = "\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _add_tools(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    tools = body.get("tools")
    if not isinstance(tools, list | None):
        refuse("tools", "must be a list")
    found = []
    for place, tool in enumerate(tools or ()):
        where = f"tools.{place}"
        if not isinstance(tool, dict):
            refuse(where, "must be an object")
        kind = tool.get("type")
        if kind not in (None, "custom"):
            refuse(
                f"{where}.type", f"{kind!r:.40} runs on Anthropic's servers; send tools of your own"
            )
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema") or {}}
        for name in ("description", "strict"):
            if tool.get(name) is not None:
                function[name] = tool[name]
        found.append({"type": "function", "function": function})
    if found:
        fields["tools"] = found
    choice = body.get("tool_choice")
    if choice is not None:
        _add_choice(fields, choice)


def _add_choice(fields: dict[str, Any], choice: Any) -> None:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind == "tool":
        function = {"name": _text(choice, "tool_choice", "name")}
        fields["tool_choice"] = {"type": "function", "function": function}
    elif kind in ("auto", "any", "none"):
        fields["tool_choice"] = "required" if kind == "any" else kind
    else:
        refuse("tool_choice.type", "must be auto, any, tool or none")
    if choice.get("disable_parallel_tool_use"):
        fields["parallel_tool_calls"] = False


def _add_thinking(fields: dict[str, Any], body: Mapping[str, Any]) -> None:
    """Thinking is what the chat template makes of it; its budget is a hint, and `max_tokens` the bound."""
    thinking = body.get("thinking")
    if thinking is not None:
        kind = thinking.get("type") if isinstance(thinking, dict) else None
        if kind not in ("enabled", "disabled", "adaptive"):
            refuse("thinking.type", "must be enabled, adaptive or disabled")
        template = fields.get("chat_template_kwargs")
        values = template if isinstance(template, dict) else {}
        fields["chat_template_kwargs"] = {"enable_thinking": kind != "disabled", **values}
        fields["include_reasoning"] = kind != "disabled"
    output = body.get("output_config")
    if output is None:
        return
    if not isinstance(output, dict) or set(output) - {"effort"}:
        refuse("output_config", "only its effort is read here")
    effort = output.get("effort")
    if effort is not None:
        if effort not in tuple(EFFORT):
            refuse("output_config.effort", f"must be one of {', '.join(sorted(EFFORT))}")
        fields["reasoning_effort"] = effort
