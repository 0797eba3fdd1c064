"""Number keywords of a JSON schema, and the values that xgrammar writes unchanged. Pure."""

from __future__ import annotations

import math
from typing import Any

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import pointer

Path = tuple[str, ...]
Schema = dict[str, Any]

KEYWORDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
BOUNDS = KEYWORDS - {"multipleOf"}
MAX_INTEGER = 2**63 - 1
# It writes numbers between bounds with six decimals, and where none of these is between them, nothing at all.
MAX_DECIMALS = 5
MAX_NUMBER = 10**15
MAX_MULTIPLE = 1024  # xgrammar passes over a larger one
MAX_VALUES = 1000  # multiples between two bounds, written one by one


def integer(path: Path, rules: Schema) -> Schema:
    """A whole number with the bounds of the schema. Raises GrammarError with the path."""
    bounds = _bounds(path, rules)
    low = _lowest(bounds)
    high = _highest(bounds)
    for bound in (low, high):
        if bound is not None and abs(bound) > MAX_INTEGER:
            raise GrammarError(f"the bound {bound} is beyond 64 bits", pointer(path))
    if low is not None and high is not None and low > high:
        raise GrammarError(
            f"nothing satisfies it: no number is at least {low} and at most {high}", pointer(path)
        )
    if "multipleOf" in rules:
        return _multiples(path, rules["multipleOf"], low, high)
    found: Schema = {"type": "integer"}
    if low is not None:
        found["minimum"] = low
    if high is not None:
        found["maximum"] = high
    return found


def number(path: Path, rules: Schema) -> Schema:
    """A number with the bounds of the schema. Raises GrammarError with the path."""
    if "multipleOf" in rules:
        raise GrammarError(
            "xgrammar enforces 'multipleOf' for the type 'integer' only; start with --grammar-backend llguidance",
            pointer(path),
        )
    bounds = _bounds(path, rules)
    for key, value in bounds.items():
        if value != round(value, MAX_DECIMALS) or abs(value) > MAX_NUMBER:
            raise GrammarError(
                f"xgrammar enforces bounds of numbers up to {MAX_NUMBER:g}, with {MAX_DECIMALS} decimals at most; "
                f"'{key}' is {value!r}",
                pointer(path),
            )
    return {"type": "number", **bounds}


def is_number(value: Any) -> bool:
    """Return True for a number that JSON can represent."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_of(value: Any, name: str) -> bool:
    """Return True if the value has the type of this name."""
    if name == "boolean":
        return isinstance(value, bool)
    if name in {"integer", "number"}:
        return is_number(value) and (name == "number" or value == math.floor(value))
    kinds: dict[str, Any] = {"null": type(None), "string": str, "array": list, "object": dict}
    return isinstance(value, kinds[name])


def check_value(path: Path, value: Any) -> None:
    """Raises GrammarError for a value with a number that xgrammar would write as another one."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list):
            waiting.extend(one)
        elif isinstance(one, float) and not math.isfinite(one):
            raise GrammarError(f"{one} is no number of JSON", pointer(path))
        elif isinstance(one, int) and abs(one) > MAX_INTEGER:
            raise GrammarError(f"the number {one} is beyond 64 bits", pointer(path))


def _bounds(path: Path, rules: Schema) -> Schema:
    bounds = {key: rules[key] for key in rules if key in BOUNDS}
    for key, value in bounds.items():
        if not is_number(value):
            raise GrammarError(f"'{key}' is a number, not {value!r}", pointer(path))
    return bounds


def _lowest(bounds: Schema) -> int | None:
    found = []
    if "minimum" in bounds:
        found.append(math.ceil(bounds["minimum"]))
    if "exclusiveMinimum" in bounds:
        found.append(math.floor(bounds["exclusiveMinimum"]) + 1)
    return max(found, default=None)


def _highest(bounds: Schema) -> int | None:
    found = []
    if "maximum" in bounds:
        found.append(math.floor(bounds["maximum"]))
    if "exclusiveMaximum" in bounds:
        found.append(math.ceil(bounds["exclusiveMaximum"]) - 1)
    return min(found, default=None)


def _multiples(path: Path, factor: Any, low: int | None, high: int | None) -> Schema:
    if not is_number(factor) or factor <= 0:
        raise GrammarError(f"'multipleOf' is a number above 0, not {factor!r}", pointer(path))
    if factor != int(factor) or factor > MAX_MULTIPLE:
        raise GrammarError(
            f"xgrammar enforces 'multipleOf' for whole numbers up to {MAX_MULTIPLE}, not {factor}",
            pointer(path),
        )
    step = int(factor)
    if low is None and high is None:
        return {"type": "integer", "multipleOf": step}
    if low is None or high is None or high - low > step * MAX_VALUES:
        raise GrammarError(
            f"xgrammar enforces 'multipleOf' with both bounds, and at most {MAX_VALUES} multiples between them, or "
            "without bounds",
            pointer(path),
        )
    first = -(-low // step) * step
    values = list(range(first, high + 1, step))
    if not values:
        raise GrammarError(
            f"nothing satisfies it: no multiple of {step} is between {low} and {high}",
            pointer(path),
        )
    return {"enum": values}
