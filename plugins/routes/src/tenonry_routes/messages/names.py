"""Fields of the objects in a request. Others are rejected, or ignored and reported, by the server. Front end."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tenonry_routes.messages.request import HARMLESS, PASSED, READ

_ANSWER_FORM = "it is called output_config.format here"
# Names of the server's other routes, and of vLLM, that would change an answer.
REFUSED = {
    "max_completion_tokens": "it is called max_tokens here",
    "n": "there is one answer to a request",
    "stop": "it is called stop_sequences here",
    "reasoning_effort": "it is called output_config.effort here",
    "response_format": _ANSWER_FORM,
    "logprobs": "this route has no log-probabilities; /v1/chat/completions has",
    "compaction": "summaries are no requests of their own; ask for one in a message",
    "kv_transfer_params": "this route has none; /v1/chat/completions has",
}
MESSAGE = frozenset({"role", "content"})
SOURCE = frozenset({"type", "media_type", "data", "url", "file_id", "content"})
# Fields of the API's features that this server does not have → values with which they ask for nothing.
NOTHING: dict[str, tuple[Any, ...]] = {
    "mcp_servers": ([],),
    "context_management": ({}, {"edits": []}),
    "container": ({}, ""),
    "speed": ("standard",),
    "fallbacks": ([],),
}
BLOCKS: dict[str, Collection[str]] = {
    "text": {"type", "text"},
    "image": {"type", "source"},
    "tool_use": {"type", "id", "name", "input"},
    "tool_result": {"type", "tool_use_id", "content"},
    "document": {"type", "source", "title", "context"},
    "search_result": {"type", "source", "title", "content"},
    "tool_reference": {"type", "tool_name"},
    "compaction": {"type", "content", "encrypted_content"},
    "mid_conv_system": {"type", "content"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
}
TOOL = frozenset({"type", "name", "description", "input_schema", "strict"})
CHOICE = frozenset({"type", "name", "disable_parallel_tool_use"})
THINKING = frozenset({"type", "display"})
OUTPUT = frozenset({"effort", "format"})
FORMAT = frozenset({"type", "schema"})


def check_names(body: Any, fields: Any) -> None:
    """Check all names in a body; `fields` is the server's `FieldCheck`. Malformed values are checked elsewhere."""
    if not isinstance(body, dict):
        return
    fields.body(body, READ | {*PASSED} | HARMLESS, REFUSED, NOTHING)
    _check_blocks(body.get("system"), fields, "system")
    for place, message in enumerate(_list(body.get("messages"))):
        where = f"messages.{place}"
        fields.object(message, MESSAGE, where)
        if isinstance(message, dict):
            _check_blocks(message.get("content"), fields, f"{where}.content")
    for place, tool in enumerate(_list(body.get("tools"))):
        if isinstance(tool, dict) and tool.get("type") in (None, "custom"):
            fields.object(tool, TOOL, f"tools.{place}")
    fields.object(body.get("tool_choice"), CHOICE, "tool_choice")
    fields.object(body.get("thinking"), THINKING, "thinking")
    output = body.get("output_config")
    fields.object(output, OUTPUT, "output_config")
    if isinstance(output, dict):
        fields.object(output.get("format"), FORMAT, "output_config.format")
    fields.object(body.get("output_format"), FORMAT, "output_format")


def _check_blocks(value: Any, fields: Any, where: str) -> None:
    for place, block in enumerate(_list(value)):
        if not isinstance(block, dict):
            continue
        at = f"{where}.{place}"
        kind = block.get("type")
        if isinstance(kind, str) and kind in BLOCKS:
            fields.object(block, BLOCKS[kind], at)
            fields.object(block.get("source"), SOURCE, f"{at}.source")
            _check_blocks(block.get("content"), fields, f"{at}.content")


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
