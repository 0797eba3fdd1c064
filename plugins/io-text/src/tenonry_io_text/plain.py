"""Conversion of messages to plain data. Front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tenonry.errors import RequestError

MAX_DEPTH = 64


def plain(value: Any, depth: int = 0) -> Any:
    """A copy made of None, bool, int, float, str, list and dict alone: an object's methods could act in a template.

    pydantic models are taken apart. Raises RequestError for any other type, and below `MAX_DEPTH` levels.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"messages are nested more than {MAX_DEPTH} levels deep", "messages")
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, str):  # an enum's or another subclass's value, without its methods
        return str.__str__(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return plain(dump(), depth + 1)
    raise RequestError(
        f"messages hold a {type(value).__name__}; only JSON values and pydantic models can be rendered",
        "messages",
    )
