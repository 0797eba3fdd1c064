"""In which notation the grammar of a request is written. Pure."""

from __future__ import annotations

import re

_LARK = re.compile(r"^[ \t]*(?:%llguidance\b|[?!]?start(?:\.-?\d+)?[ \t]*:(?!:=))", re.MULTILINE)


def is_lark(grammar: str) -> bool:
    """Return True for Lark notation, with a rule `start:` or an `%llguidance`; other grammars are read as GBNF."""
    return bool(_LARK.search(grammar))
