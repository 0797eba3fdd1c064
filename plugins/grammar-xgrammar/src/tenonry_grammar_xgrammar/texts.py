"""Text keywords of a JSON schema, as one expression. Pure.

xgrammar enforces one of `format`, `pattern` and lengths and ignores the others; its texts of a given length may contain
control characters, which JSON forbids.
"""

from __future__ import annotations

from typing import Any

from tenonry_grammar_xgrammar.numbers import is_number
from tenonry_grammar_xgrammar.write import ANY_JSON_TEXT, written
from tenonry_grammars.base import GrammarError
from tenonry_grammars.characters import ANY
from tenonry_grammars.nodes import One, Repeat
from tenonry_grammars.regex import MAX_COUNT, parsed
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.formats import FORMATS, UNSERVED

KEYWORDS = frozenset({"pattern", "format", "minLength", "maxLength"})


def string(path: tuple[str, ...], rules: dict[str, Any]) -> dict[str, Any]:
    """A text with what the schema's keywords say of it. Raises GrammarError with the path."""
    given = KEYWORDS & set(rules)
    if _is_annotation(rules.get("format")):
        given -= {"format"}
    if not given:
        return {"type": "string", "pattern": ANY_JSON_TEXT}
    lengths = given & {"minLength", "maxLength"}
    if len(given - lengths) + bool(lengths) > 1:
        raise GrammarError(
            f"xgrammar enforces one of 'pattern', 'format' and lengths, not {' and '.join(sorted(given))}; write them "
            "as one pattern, or start with --grammar-backend llguidance",
            pointer(path),
        )
    if lengths:
        return {"type": "string", "pattern": _of_length(path, rules)}
    keyword = next(iter(given))
    pattern = rules[keyword]
    if not isinstance(pattern, str):
        raise GrammarError(f"'{keyword}' is a text", pointer(path))
    if keyword == "format":
        if pattern in UNSERVED:
            raise GrammarError(
                f"the format {pattern!r} is not enforced; leave it out", pointer(path)
            )
        pattern = FORMATS[pattern]
    try:
        found = written(parsed(pattern, whole=False), in_json=True)
    except GrammarError as error:
        raise GrammarError(str(error), pointer(path)) from None
    return {"type": "string", "pattern": found}


def _is_annotation(value: Any) -> bool:
    """A format that JSON Schema does not define."""
    return not isinstance(value, str) or (value not in FORMATS and value not in UNSERVED)


def count(path: tuple[str, ...], rules: dict[str, Any], keyword: str) -> int | None:
    """A number of things that a keyword gives, None without it. Raises GrammarError for anything else."""
    if keyword not in rules:
        return None
    value = rules[keyword]
    is_whole = is_number(value) and value == int(value)
    if not is_whole or not 0 <= value <= MAX_COUNT:
        raise GrammarError(
            f"'{keyword}' is a whole number from 0 to {MAX_COUNT}, not {value!r}", pointer(path)
        )
    return int(value)


def _of_length(path: tuple[str, ...], rules: dict[str, Any]) -> str:
    low = count(path, rules, "minLength") or 0
    high = count(path, rules, "maxLength")
    if high is not None and high < low:
        raise GrammarError(
            f"nothing satisfies it: 'maxLength' is less than 'minLength', {low}", pointer(path)
        )
    return written(Repeat(One(ANY), low, high), in_json=True) or "()"
