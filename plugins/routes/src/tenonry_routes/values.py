"""Reading and rejecting values of a request. Front end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

from tenonry.errors import RequestError

Ignore = Callable[[str, str], None]  # of a part, and why it has no effect


def refuse(param: str, message: str, code: str = "invalid_request") -> NoReturn:
    """Raises RequestError."""
    raise RequestError(f"{param}: {message}", param, code)


def text_of(value: Any, where: str, name: str) -> str:
    """The text in a field. Raises RequestError."""
    text = value.get(name) if isinstance(value, dict) else None
    if not isinstance(text, str):
        refuse(f"{where}.{name}", "must be a text")
    return str(text)


def result_content(value: Any) -> Any:
    """A tool's result: texts, lists of objects, which may be parts, and None as they are; other values as JSON text."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and (not value or any(isinstance(part, dict) for part in value)):
        return value
    return as_json(value)


def as_json(value: Any) -> str:
    """`value` as JSON, whose characters are not escaped."""
    return json.dumps(value, ensure_ascii=False)


def whole(value: Any) -> Any:
    """The value; an integer also where it is written as 4.0, which is the same number in JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
