"""Reading and refusing values of a request. Front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from tenonry.errors import RequestError

Ignore = Callable[[str, str], None]  # of a part, and why it has no effect


def refuse(param: str, message: str) -> NoReturn:
    """Raises RequestError."""
    raise RequestError(f"{param}: {message}", param)


def text_of(value: Mapping[str, Any], where: str, name: str) -> str:
    """The text in a field. Raises RequestError."""
    text = value.get(name)
    if not isinstance(text, str):
        refuse(f"{where}.{name}", "must be a text")
    return str(text)
