"""Input items as messages of a chat. Front end.

Calls of tools that run at the client are calls of functions, whatever kind they are of. Items that only OpenAI's
servers can read are omitted and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tenonry_routes.responses.tools import joined_name
from tenonry_routes.values import Ignore, as_json, refuse, result_content, text_of

MAX_ITEMS = 4096
DETAILS = ("auto", "low", "high", "original")
TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
# Parts that a client sent where an item belongs.
PARTS = TEXT_PARTS | {"input_image", "input_file", "input_audio", "refusal"}
# Calls of tools that run at the client.
CLIENT_CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "shell_call", "apply_patch_call"}
)
NOT_STORED = "nothing is stored; send the item itself"
FOREIGN = "only OpenAI's servers read this item"
Message = dict[str, Any]
Part = dict[str, Any]
Item = Mapping[str, Any]


def messages_of(value: Any, ignore: Ignore) -> list[Message]:
    """The messages of a chat. `ignore` receives the omitted items. Raises RequestError."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, list) or not value:
        refuse("input", "must be a text or a list of at least one item")
    if len(value) > MAX_ITEMS:
        refuse("input", f"has {len(value)} items; at most {MAX_ITEMS} are allowed")
    conversation = _Conversation(ignore)
    for place, item in enumerate(value):
        where = f"input.{place}"
        if not isinstance(item, dict):
            refuse(where, "must be an object")
        conversation.add(item, where)
    if not conversation.messages:
        refuse("input", "holds no message")
    return [
        {**message, "content": _content(message["content"])} for message in conversation.messages
    ]


class _Conversation:
    """Items become messages: reasoning, text and calls of one turn are one message of the assistant."""

    def __init__(self, ignore: Ignore) -> None:
        self.messages: list[Message] = []
        self._ignore = ignore
        self._readers: dict[str, Callable[[Item, str], None]] = {
            "message": self._message,
            "reasoning": self._reasoning,
            "function_call": self._function_call,
            "custom_tool_call": self._custom_call,
            "local_shell_call": self._action_call,
            "shell_call": self._action_call,
            "apply_patch_call": self._action_call,
            "mcp_call": self._mcp_call,
            "compaction": self._compaction,
            "compaction_summary": self._compaction,
        }
        self._readers |= {f"{kind}_output": self._output for kind in CLIENT_CALLS}

    def add(self, item: Item, where: str) -> None:
        """One more item. Raises RequestError."""
        kind = item.get("type")
        if kind is None:
            kind = "item_reference" if "role" not in item and "id" in item else "message"
        if not isinstance(kind, str) or kind in PARTS:
            refuse(f"{where}.type", f"{kind!r:.40} is no item; send messages", "unsupported")
        read = self._readers.get(kind)
        if read is not None:
            read(item, where)
        elif "role" in item and kind != "additional_tools":
            refuse(f"{where}.type", f"{kind!r:.40} is no message", "unsupported")
        else:
            self._ignore(
                f"input[] ({kind:.40})", NOT_STORED if kind == "item_reference" else FOREIGN
            )

    def _message(self, item: Item, where: str) -> None:
        role = item.get("role")
        if role not in ("user", "assistant", "system", "developer"):
            refuse(f"{where}.role", "must be user, assistant, system or developer")
        content = item.get("content")
        if content is None and role == "assistant":
            return
        parts = _parts(content, f"{where}.content", images=role == "user")
        if role != "assistant":
            self.messages.append({"role": role, "content": parts})
            return
        self._turn()["content"] += parts

    def _reasoning(self, item: Item, where: str) -> None:
        """The text of reasoning, or else its summary; encrypted content is its author's."""
        texts = _texts(item.get("content"), f"{where}.content")
        texts = texts or _texts(item.get("summary"), f"{where}.summary")
        text = "".join(texts)
        if text:
            turn = self._turn()
            before = turn.get("reasoning_content")
            turn["reasoning_content"] = f"{before}\n{text}" if before else text
        if item.get("encrypted_content"):
            self._ignore("input[].encrypted_content", "only its author can read it")

    def _function_call(self, item: Item, where: str) -> None:
        name = joined_name(item.get("namespace"), text_of(item, where, "name"))
        arguments = item.get("arguments")
        if not isinstance(arguments, str):
            arguments = "" if arguments is None else as_json(arguments)
        self._call(item, where, name, arguments)

    def _custom_call(self, item: Item, where: str) -> None:
        name = joined_name(item.get("namespace"), text_of(item, where, "name"))
        self._call(item, where, name, as_json({"input": text_of(item, where, "input")}))

    def _action_call(self, item: Item, where: str) -> None:
        """A call of a tool whose form is OpenAI's: a command, or a change of a file."""
        kind = str(item["type"])
        field = "operation" if kind == "apply_patch_call" else "action"
        action = item.get(field)
        if not isinstance(action, dict):
            refuse(f"{where}.{field}", "must be an object")
        self._call(item, where, kind.removesuffix("_call"), as_json(action))

    def _mcp_call(self, item: Item, where: str) -> None:
        """A call that a server made, with its result."""
        call_id = text_of(item, where, "id")
        self._call(
            {"call_id": call_id},
            where,
            text_of(item, where, "name"),
            text_of(item, where, "arguments"),
        )
        output = item.get("output")
        if not isinstance(output, str):
            output = "" if item.get("error") is None else as_json(item["error"])
        self._result(call_id, [_text_part(output)])

    def _compaction(self, item: Item, where: str) -> None:
        """A summary of earlier items, if it can be read."""
        summary = item.get("summary", item.get("content"))
        texts = [summary] if isinstance(summary, str) else _texts(summary, f"{where}.summary")
        if any(texts):
            self.messages.append({"role": "user", "content": [_text_part("".join(texts))]})
        else:
            self._ignore(f"input[] ({item['type']})", "only its author can read it")

    def _call(self, item: Item, where: str, name: str, arguments: str) -> None:
        call_id = item.get("call_id")
        if call_id is None:
            call_id = item.get("id")  # as local_shell_call_output names its call
        if not isinstance(call_id, str):
            refuse(f"{where}.call_id", "must be a text")
        function = {"name": name, "arguments": arguments}
        call = {"id": call_id, "type": "function", "function": function}
        self._turn().setdefault("tool_calls", []).append(call)

    def _output(self, item: Item, where: str) -> None:
        call_id = item.get("call_id", item.get("id"))
        if not isinstance(call_id, str):
            refuse(f"{where}.call_id", "must be a text")
        output = item.get("output")
        if item.get("type") in ("shell_call_output", "apply_patch_call_output"):
            output = item.get("status") if output is None else output
            output = output if isinstance(output, str) else as_json(output)
        output = "" if output is None else result_content(output)
        self._result(call_id, _parts(output, f"{where}.output"))

    def _result(self, call_id: str, parts: list[Part]) -> None:
        self.messages.append({"role": "tool", "tool_call_id": call_id, "content": parts})

    def _turn(self) -> Message:
        """The assistant's message that the next item belongs to."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": []})
        return self.messages[-1]


def _text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _texts(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        refuse(where, "must be a list of parts")
    return [text_of(part, f"{where}.{place}", "text") for place, part in enumerate(value)]


def _content(parts: list[Part]) -> str | list[Part]:
    """Parts as the content of a message; a single text as itself."""
    if len(parts) <= 1 and all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _parts(value: Any, where: str, *, images: bool = True) -> list[Part]:
    """A text, or parts, as parts of a chat's message."""
    if isinstance(value, str):
        return [_text_part(value)]
    if not isinstance(value, list):
        refuse(where, "must be a text or a list of parts")
    return [_part(part, f"{where}.{place}", images) for place, part in enumerate(value)]


def _part(part: Any, where: str, images: bool) -> Part:
    """A part in the form of chats."""
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "input_image" and images:
        return _image(part, where)
    if kind == "refusal":
        return _text_part(text_of(part, where, "refusal"))
    if kind not in tuple(TEXT_PARTS):
        what = "text and input_image" if images else "text"
        refuse(f"{where}.type", f"{kind!r:.40} is not read here; send {what}", "unsupported")
    return _text_part(text_of(part, where, "text"))


def _image(part: Item, where: str) -> Part:
    """An image in the form of chats."""
    if part.get("file_id") is not None:
        refuse(f"{where}.file_id", "there are no files; send image_url", "unsupported")
    url = text_of(part, where, "image_url")
    if not url.strip():
        refuse(f"{where}.image_url", "is empty; send a data: or https: URL")
    detail = part.get("detail")
    if detail is not None and detail not in DETAILS:
        refuse(f"{where}.detail", f"{detail!r:.40} must be one of {', '.join(DETAILS)}")
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}
