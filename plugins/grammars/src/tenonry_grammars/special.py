"""Special tokens of a tokenizer: they mark structure and never stand for text that a grammar allows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def special_tokens(added_tokens: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Ids by name, from the `added_tokens` of a `tokenizer.json`.

    Besides those flagged as special, tokens such as `<tool_call>` count: a model reads them as markup, flagged or not.
    """
    return {
        token["content"]: token["id"]
        for token in added_tokens
        if token.get("special") or _is_markup(token["content"])
    }


def _is_markup(content: str) -> bool:
    return content.startswith("<") and content.endswith(">")
