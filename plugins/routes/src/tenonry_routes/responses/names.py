"""Fields of the objects in a request. Others are rejected, or ignored and reported, by the server. Front end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tenonry_routes.responses.request import HARMLESS, PASSED, READ, REFUSED

_MAX_TOKENS = "it is called max_output_tokens here"
# Names of the server's other routes, and of vLLM, that would change an answer.
ELSEWHERE = {
    "messages": "it is called input here",
    "system": "it is called instructions here",
    "max_tokens": _MAX_TOKENS,
    "max_completion_tokens": _MAX_TOKENS,
    "n": "there is one answer to a request",
    "stop_sequences": "it is called stop here",
    "reasoning_effort": "it is called reasoning.effort here",
    "response_format": "it is called text.format here",
    "logprobs": 'say include: ["message.output_text.logprobs"]',
    "kv_transfer_params": "this route has none; /v1/chat/completions has",
    "previous_input_messages": REFUSED["previous_response_id"],
    "previous_response": REFUSED["previous_response_id"],
    "enable_response_messages": "/tokenize shows the prompt of a chat",
}
_CALL = {"type", "id", "call_id", "name", "arguments", "status", "namespace"}
_OUTPUT = {"type", "id", "call_id", "output", "status"}
ITEMS: dict[str, Collection[str]] = {
    "message": {"type", "id", "role", "content", "status"},
    "function_call": _CALL,
    "function_call_output": _OUTPUT,
    "custom_tool_call": {"type", "id", "call_id", "name", "input", "status", "namespace"},
    "custom_tool_call_output": _OUTPUT,
    "local_shell_call": {"type", "id", "call_id", "action", "status"},
    "local_shell_call_output": _OUTPUT,
    "shell_call": {"type", "id", "call_id", "action", "status"},
    "shell_call_output": _OUTPUT,
    "apply_patch_call": {"type", "id", "call_id", "operation", "status"},
    "apply_patch_call_output": _OUTPUT,
    "mcp_call": {"type", "id", "name", "arguments", "output", "error", "status"},
    "compaction": {"type", "id", "summary", "content", "encrypted_content", "created_by"},
    "compaction_summary": {"type", "id", "summary", "content", "encrypted_content", "created_by"},
    "reasoning": {"type", "id", "summary", "content", "encrypted_content", "status"},
}
PARTS: dict[str, Collection[str]] = {
    "input_text": {"type", "text"},
    "text": {"type", "text"},
    "output_text": {"type", "text", "logprobs"},
    "refusal": {"type", "refusal"},
    "input_image": {"type", "image_url", "file_id", "detail"},
}
TOOL = frozenset({"type", "name", "description", "parameters", "strict"})
SPACE = frozenset({"type", "name", "description", "tools"})
CHOICE = frozenset({"type", "name", "namespace", "mode", "tools"})
REASONING = frozenset({"effort"})
TEXT = frozenset({"format"})
FORMAT = frozenset({"type", "name", "description", "schema", "strict"})


def check_names(body: Any, fields: Any) -> None:
    """Check all names in a body; `fields` is the server's `FieldCheck`. Malformed values are checked elsewhere."""
    if not isinstance(body, dict):
        return
    fields.body(body, READ | {*PASSED} | HARMLESS | set(REFUSED), ELSEWHERE)
    for place, item in enumerate(_list(body.get("input"))):
        _check_item(item, fields, f"input.{place}")
    _check_tools(body.get("tools"), fields, "tools")
    fields.object(body.get("tool_choice"), CHOICE, "tool_choice")
    fields.object(body.get("reasoning"), REASONING, "reasoning")
    fields.object(body.get("stream_options"), (), "stream_options")
    text = body.get("text")
    fields.object(text, TEXT, "text")
    if isinstance(text, dict):
        fields.object(text.get("format"), FORMAT, "text.format")


def _check_tools(tools: Any, fields: Any, where: str) -> None:
    for place, tool in enumerate(_list(tools)):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind == "function":
            fields.object(tool, TOOL, f"{where}.{place}")
        elif kind == "namespace" and where == "tools":
            fields.object(tool, SPACE, f"{where}.{place}")
            _check_tools(tool.get("tools"), fields, f"{where}.{place}.tools")


def _check_item(item: Any, fields: Any, where: str) -> None:
    if not isinstance(item, dict):
        return
    known = _of_kind(ITEMS, item.get("type") or "message")
    if known is None:
        return
    fields.object(item, known, where)
    for name in ("content", "output"):
        for place, part in enumerate(_list(item.get(name))):
            known = _of_kind(PARTS, part.get("type")) if isinstance(part, dict) else None
            if known is not None:
                fields.object(part, known, f"{where}.{name}.{place}")


def _of_kind(table: dict[str, Collection[str]], kind: Any) -> Collection[str] | None:
    return table.get(kind) if isinstance(kind, str) else None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
