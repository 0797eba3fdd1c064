"""Tool calls of earlier messages in the form that a template reads. Front end.

Clients replay what a server sent, calls that `max_tokens` cut included, so arguments may be any text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any

from tenonry.errors import RequestError
from tenonry_io_text.forms import TemplateForms
from tenonry_io_text.plain import plain

INVALID_JSON = "INVALID_JSON"  # Anthropic's key for arguments that are no JSON object
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_SURROGATE = re.compile(r"\\ud[89a-f]", re.IGNORECASE)


def template_calls(calls: Any, forms: TemplateForms, where: str) -> Iterator[dict[str, Any]]:
    """The calls of a message as the template reads them. Raises RequestError."""
    if not isinstance(calls, list):
        raise RequestError(f"{where} must be a list, not a {type(calls).__name__}", where)
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise RequestError(f"{where}[{index}] must be an object with 'function'", where)
        arguments = _arguments(function.get("arguments"), forms)
        shown = {**call, "function": {**function, "arguments": arguments}}
        if "id" in call:
            shown["id"] = template_id(call["id"], forms)
        yield shown


def template_id(call_id: Any, forms: TemplateForms) -> Any:
    """The id of a call; a digest of it where the template takes nine letters and digits only."""
    if not forms.short_ids or not isinstance(call_id, str) or _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:9]


def _arguments(value: Any, forms: TemplateForms) -> Any:
    """An object where the arguments are one and the template reads objects, else their text."""
    if isinstance(value, str):
        found, text = _object(value), value
    else:
        found = {} if value is None else value
        text = json.dumps(found, ensure_ascii=False)
    if isinstance(found, dict) and forms.takes_objects:
        return found
    return text if forms.takes_text else {INVALID_JSON: text}


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that a text is; None for any other text, and for an object that cannot be printed."""
    if text.strip() in ("", "null"):
        return {}
    try:
        value = json.loads(text)
        if not isinstance(value, dict):
            return None
        if _SURROGATE.search(text):
            json.dumps(value, ensure_ascii=False).encode()  # half a character has no UTF-8
        plain(value)
    except (ValueError, RecursionError):  # RequestError of plain() is a ValueError
        return None
    return value
