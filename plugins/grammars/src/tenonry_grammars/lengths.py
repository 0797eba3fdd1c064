"""Longest text allowed by a specification, if simple enough to determine. Pure."""

from __future__ import annotations

import json
from typing import Any

from tenonry.sampling_params import StructuredOutput
from tenonry_grammars.base import GrammarError
from tenonry_grammars.nodes import Choice, Node, One, Repeat, Row
from tenonry_grammars.regex import parsed


def longest_text(spec: StructuredOutput) -> int | None:
    """Bytes in UTF-8, none fewer than any text that the specification allows; None for no bound or an unknown one."""
    if spec.choice is not None:
        return max(len(text.encode(errors="replace")) for text in spec.choice)
    try:
        if spec.regex is not None:
            return _longest_match(parsed(spec.regex, whole=True))
        if spec.json is not None:
            return _longest_value(json.loads(spec.json))
    except (GrammarError, ValueError, RecursionError):  # refused elsewhere, with the reason
        return None
    return None


def _longest_match(node: Node) -> int | None:
    if isinstance(node, One):
        return (
            len(chr(max(high for _, high in node.chars)).encode(errors="replace"))
            if node.chars
            else 0
        )
    if isinstance(node, Repeat):
        part = _longest_match(node.part)
        if part == 0 or node.high == 0:
            return 0
        return None if part is None or node.high is None else part * node.high
    if isinstance(node, Choice):
        options = [_longest_match(option) for option in node.options]
        return None if None in options else max(filter(None, options), default=0)
    parts = [_longest_match(part) for part in node.parts] if isinstance(node, Row) else [None]
    return None if None in parts else sum(filter(None, parts))


def _longest_value(schema: Any) -> int | None:
    """Return the longest value of a schema that lists its values, or of a type with few values."""
    if not isinstance(schema, dict):
        return None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if values is None and schema.get("type") in ("boolean", "null"):
        return len("false")
    if not isinstance(values, list) or not all(_has_one_form(value) for value in values):
        return None
    return max((len(json.dumps(value)) for value in values), default=None)


def _has_one_form(value: Any) -> bool:
    """Return True if no JSON form of the value is longer than that of `json.dumps`."""
    return (
        value is None or isinstance(value, bool) or (isinstance(value, str) and value.isprintable())
    )
