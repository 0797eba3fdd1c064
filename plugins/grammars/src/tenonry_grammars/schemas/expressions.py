"""Expressions of a JSON schema, and the texts that match them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

from tenonry_grammars.nodes import Node
from tenonry_grammars.regex import parsed
from tenonry_grammars.regex_text import pattern_text


@lru_cache(4096)
def expression(text: str, *, widest: bool = False) -> Node:
    """Expression for whole texts that contain a match of `text`; see `parsed`. Raises GrammarError."""
    return parsed(text, whole=False, widest=widest)


@lru_cache(4096)
def _compiled(node: Node) -> re.Pattern[str]:
    return re.compile(pattern_text(node))


def matches(node: Node, text: str) -> bool:
    """Return True if the whole text matches."""
    return bool(_compiled(node).fullmatch(text))
