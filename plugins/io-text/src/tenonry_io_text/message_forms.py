"""Messages in older forms of OpenAI's chats, and with results that are no text, in the form of today. Front end."""

from __future__ import annotations

import json
from typing import Any

ROLES = {"developer": "system", "function": "tool"}
Message = dict[str, Any]


def todays_form(message: Message) -> Message:
    """The message with roles, calls and results as chat templates know them; malformed values are checked later."""
    role = message["role"]
    found = {**message, "role": ROLES.get(role, role)} if role in ROLES else dict(message)
    older = found.pop("function_call", None)
    if isinstance(older, dict) and not found.get("tool_calls"):
        found["tool_calls"] = [{"type": "function", "function": older}]
    if isinstance(found.get("tool_calls"), list):
        found["tool_calls"] = [_call(call) for call in found["tool_calls"]]
    if found["role"] == "tool" and "content" in found:
        found["content"] = _result(found["content"])
    return found


def _call(call: Any) -> Any:
    """A call of a custom tool is one of a function with its text as the argument `input`."""
    custom = call.get("custom") if isinstance(call, dict) else None
    if not isinstance(custom, dict) or "function" in call:
        return call
    rest = {name: value for name, value in call.items() if name != "custom"}
    function = {"name": custom.get("name"), "arguments": {"input": custom.get("input") or ""}}
    return {**rest, "type": "function", "function": function}


def _result(content: Any) -> Any:
    """A text, or parts, as they are; any other value as JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and (not content or any(isinstance(one, dict) for one in content)):
        return content
    return json.dumps(content, ensure_ascii=False)
