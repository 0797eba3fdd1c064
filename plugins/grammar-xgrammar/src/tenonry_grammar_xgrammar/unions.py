"""Disjointness of schemas: without a common value `oneOf` equals `anyOf`, which xgrammar enforces. Pure.

xgrammar reads `oneOf` as `anyOf` if it cannot decide, and only logs that.
"""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

from tenonry_grammar_xgrammar.numbers import is_of

KINDS = ("null", "boolean", "number", "string", "array", "object")


def overlapping(options: list[Any]) -> tuple[int, int] | None:
    """The places of two schemas of which it does not show that they exclude each other; None if there are none."""
    for one, other in combinations(range(len(options)), 2):
        if not _exclude(options[one], options[other]):
            return one, other
    return None


def _exclude(one: Any, other: Any) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    if not _kinds(one) & _kinds(other) or _differ(one, other):
        return True
    shared = set(_names(one)) & set(_names(other))
    are_objects = _kinds(one) == _kinds(other) == {"object"}
    return are_objects and any(
        _differ(one["properties"][name], other["properties"][name]) for name in shared
    )


def _kinds(schema: dict[str, Any]) -> set[str]:
    """The types that its values may have, with `number` for `integer`."""
    values = _values(schema)
    if values is not None:
        return {kind for kind in KINDS for value in values if is_of(value, kind)}
    types = schema.get("type", list(KINDS))
    found = types if isinstance(types, list) else [types]
    return {"number" if kind == "integer" else str(kind) for kind in found}


def _values(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _differ(one: Any, other: Any) -> bool:
    """Return True if both schemas list all of their values, and none is the same."""
    values = _values(one)
    others = _values(other)
    if values is None or others is None:
        return False
    return not set(map(_written, values)) & set(map(_written, others))


def _written(value: Any) -> str:
    """The same for equal values: a number without a fraction is written as an integer."""
    if isinstance(value, float) and is_of(value, "integer"):
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _names(schema: dict[str, Any]) -> list[str]:
    """The properties that every object of a schema has, and of which it says something."""
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return []
    return [name for name in properties if name in required]
