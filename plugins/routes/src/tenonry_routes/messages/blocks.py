"""Messages of content blocks as messages of a chat. Front end.

Documents and search results become texts. Blocks that only their author's servers can read, and files that no model
here can, are omitted and reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tenonry_routes.values import Ignore, refuse, result_content, text_of

MAX_BLOCKS = 4096
MEDIA_TYPE = re.compile(r"image/[a-z0-9.+-]{1,32}")
INVALID_JSON = "INVALID_JSON"
USER_BLOCKS = "text, image, document, search_result and tool_result blocks"
RESULT_BLOCKS = "text, image, document, search_result and tool_reference blocks"
DOCUMENT_BLOCKS = "text and image blocks"
ASSISTANT_BLOCKS = "text, thinking and tool_use blocks"
# Blocks of tools that Anthropic's servers run, and of features that only these have.
FOREIGN = frozenset({
    "server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result",
    "bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result",
    "advisor_tool_result", "mcp_tool_use", "mcp_tool_result", "container_upload", "tool_addition", "tool_removal",
    "fallback", "redacted_thinking",
})  # fmt: skip
UNREAD_FILES = {
    "base64": "its media type is not read",
    "url": "addresses are not read",
    "file": "there are no files",
}
Part = dict[str, Any]
Message = dict[str, Any]


class BlockReader:
    """Reads the messages of one request. `ignore` receives the omitted blocks."""

    def __init__(self, ignore: Ignore) -> None:
        self._ignore = ignore

    def messages(self, value: Any) -> list[Message]:
        """The messages of a chat. Raises RequestError that names the field."""
        if not isinstance(value, list) or not value:
            refuse("messages", "must be a list of at least one message")
        chat: list[Message] = []
        for place, message in enumerate(value):
            chat += self._message(message, f"messages.{place}")
        return chat

    def system(self, value: Any, where: str = "system") -> list[Message]:
        """A system prompt, or none. Raises RequestError."""
        if value is None or value == "":
            return []
        if isinstance(value, str):
            return [{"role": "system", "content": value}]
        parts = []
        for at, block in _blocks(value, where):
            if block.get("type") != "text":
                refuse(f"{at}.type", f"{block.get('type')!r:.40} is not read here; send text")
            parts.append(_text(block, at))
        return [{"role": "system", "content": _content(parts)}] if parts else []

    def _message(self, message: Any, where: str) -> list[Message]:
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("user", "assistant", "system"):
            refuse(f"{where}.role", "must be user or assistant")
        content, at = message.get("content"), f"{where}.content"
        if role == "system":
            return self.system(content, at)
        if isinstance(content, str):
            return [{"role": role, "content": content}]
        if role == "user":
            return self._user(content, at)
        return [self._assistant([] if content is None else content, at)]

    def _user(self, content: Any, where: str) -> list[Message]:
        """Convert tool results to separate messages, before the rest."""
        results: list[Message] = []
        instructions: list[Message] = []
        parts: list[Part] = []
        for at, block in _blocks(content, where):
            kind = block.get("type")
            if kind == "tool_result":
                results.append(self._result(block, at))
            elif kind == "mid_conv_system":
                instructions += self.system(block.get("content"), f"{at}.content")
            else:
                parts += self._parts(block, at, USER_BLOCKS)
        chat = [*results, *instructions]
        if parts or not chat:
            chat.append({"role": "user", "content": _content(parts)})
        return chat

    def _result(self, block: Mapping[str, Any], where: str) -> Message:
        content = result_content(block.get("content"))
        if not isinstance(content, str):
            parts = [
                part
                for at, inner in _blocks([] if content is None else content, f"{where}.content")
                for part in self._parts(inner, at, RESULT_BLOCKS)
            ]
            content = _content(parts)
        call_id = text_of(block, where, "tool_use_id")
        return {"role": "tool", "tool_call_id": call_id, "content": content}

    def _parts(self, block: Mapping[str, Any], where: str, offered: str) -> list[Part]:
        """A block as parts of a chat's message."""
        kind = block.get("type")
        if kind == "text":
            return [_text(block, where)]
        if kind == "image":
            return [_image(block, where)]
        if kind == "document" and offered != DOCUMENT_BLOCKS:
            return self._document(block, where)
        if kind == "search_result":
            lines = [text_of(block, where, name) for name in ("title", "source")]
            texts = [
                text_of(inner, at, "text")
                for at, inner in _blocks(block.get("content"), f"{where}.content")
            ]
            return [_as_text("\n".join([*lines, *texts]))]
        if kind == "tool_reference" and offered == RESULT_BLOCKS:
            return [_as_text(text_of(block, where, "tool_name"))]
        if kind == "compaction":
            return self._compaction(block, where)
        self._leave_out(block, where, offered)
        return []

    def _compaction(self, block: Mapping[str, Any], where: str) -> list[Part]:
        """Summary of a compacted conversation, or nothing if the compaction failed."""
        if block.get("encrypted_content"):
            self._ignore("messages[].content[].encrypted_content", "only its author can read it")
        if block.get("content") is None:
            return []
        return [_as_text(text_of(block, where, "content"))]

    def _document(self, block: Mapping[str, Any], where: str) -> list[Part]:
        source = block.get("source")
        if not isinstance(source, dict):
            refuse(f"{where}.source", "must be an object")
        kind = source.get("type")
        head = [block[name] for name in ("title", "context") if isinstance(block.get(name), str)]
        if kind == "text":
            return [_as_text("\n".join([*head, text_of(source, f"{where}.source", "data")]))]
        if kind == "content":
            content, at = source.get("content"), f"{where}.source.content"
            parts = [_as_text(text) for text in [*head, content] if isinstance(text, str)]
            inner = [] if isinstance(content, str) else _blocks(content, at)
            for to, one in inner:
                parts += self._parts(one, to, DOCUMENT_BLOCKS)
            return parts
        if not isinstance(kind, str) or kind not in UNREAD_FILES:
            refuse(f"{where}.source.type", f"{kind!r:.40} is not read here; send text or content")
        self._ignore("messages[].content[] (document)", UNREAD_FILES[kind])
        title = f" {head[0]!r}" if block.get("title") and head else ""
        return [_as_text(f"[The document{title} cannot be read here.]")]

    def _assistant(self, content: Any, where: str) -> Message:
        parts: list[Part] = []
        reasoning: list[str] = []
        calls: list[dict[str, Any]] = []
        for at, block in _blocks(content, where):
            kind = block.get("type")
            if kind == "text":
                parts.append(_text(block, at))
            elif kind == "thinking":
                reasoning.append(text_of(block, at, "thinking"))
            elif kind == "tool_use":
                calls.append(_call(block, at))
            elif kind == "compaction":
                parts += self._compaction(block, at)
            else:
                self._leave_out(block, at, ASSISTANT_BLOCKS)
        message: Message = {"role": "assistant", "content": _content(parts)}
        if any(reasoning):
            message["reasoning_content"] = "\n".join(reasoning)
        if calls:
            message["tool_calls"] = calls
        return message

    def _leave_out(self, block: Mapping[str, Any], where: str, offered: str) -> None:
        kind = block.get("type")
        if not isinstance(kind, str) or kind not in FOREIGN:
            refuse(f"{where}.type", f"{kind!r:.40} is not read here; send {offered}")
        self._ignore(f"messages[].content[] ({kind})", "only Anthropic's servers read this block")


def _blocks(value: Any, where: str) -> list[tuple[str, dict[str, Any]]]:
    """The blocks of a content, with their paths."""
    if not isinstance(value, list) or not all(isinstance(block, dict) for block in value):
        refuse(where, "must be a text or a list of content blocks")
    if len(value) > MAX_BLOCKS:
        refuse(where, f"has {len(value)} blocks; at most {MAX_BLOCKS} are allowed")
    return [(f"{where}.{place}", block) for place, block in enumerate(value)]


def _as_text(text: str) -> Part:
    return {"type": "text", "text": text}


def _text(block: Mapping[str, Any], where: str) -> Part:
    return _as_text(text_of(block, where, "text"))


def _content(parts: list[Part]) -> str | list[Part]:
    """Parts as the content of a message; a single text as itself."""
    if len(parts) <= 1 and all(part["type"] == "text" for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _call(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = {"name": text_of(block, where, "name"), "arguments": _arguments(block.get("input"))}
    return {"id": text_of(block, where, "id"), "type": "function", "function": function}


def _arguments(value: Any) -> str:
    """Original text of a call's arguments, which this API shows as an object if they are invalid."""
    if isinstance(value, dict) and list(value) == [INVALID_JSON]:
        text = value[INVALID_JSON]
        if isinstance(text, str):
            return text
    return json.dumps(value or {}, ensure_ascii=False)


def _image(block: Mapping[str, Any], where: str) -> Part:
    url = _url(block.get("source"), f"{where}.source")
    return {"type": "image_url", "image_url": {"url": url}}


def _url(source: Any, where: str) -> str:
    """URL of an image, or the image itself."""
    kind = source.get("type") if isinstance(source, dict) else None
    if kind not in ("base64", "url"):
        refuse(f"{where}.type", f"{kind!r:.40} is not read here; send base64 or url")
    name = "url" if kind == "url" else "data"
    if kind == "base64":
        media_type = text_of(source, where, "media_type")
        if not MEDIA_TYPE.fullmatch(media_type):
            refuse(
                f"{where}.media_type", f"{media_type!r:.40} is no type of an image, as image/png is"
            )
    text = text_of(source, where, name)
    if not text.strip():
        refuse(f"{where}.{name}", "is empty; send an image")
    return text if kind == "url" else f"data:{media_type};base64,{text}"
