"""Numbers of a JSON schema as xgrammar enforces them. Pure."""

from __future__ import annotations

from fractions import Fraction

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schemas.leaves import Number
from tenonry_grammars.schemas.writer import Schema

MAX_INTEGER = 2**63 - 1
# It writes numbers between bounds with six decimals, and where none of these is between them, nothing at all.
MAX_DECIMALS = 5
MAX_NUMBER = 10**15
MAX_MULTIPLE = 1024  # xgrammar passes over a larger one
MAX_VALUES = 1000  # multiples between two bounds, written one by one


def number(leaf: Number) -> Schema:
    """The schema of the numbers of a form. Raises GrammarError for bounds that xgrammar does not enforce."""
    if leaf.values is not None:
        return {"enum": [_exact(value) for value in leaf.values]}
    if leaf.factor is not None:
        return _multiples(leaf, leaf.factor)
    return _integer(leaf) if leaf.is_whole else _decimal(leaf)


def _exact(value: Fraction) -> int | float:
    if value.denominator != 1:
        return float(value)
    return _whole(value)


def _whole(value: Fraction) -> int:
    if abs(value) > MAX_INTEGER:
        raise GrammarError(f"the number {int(value)} is beyond 64 bits")
    return int(value)


def _integer(leaf: Number) -> Schema:
    found: Schema = {"type": "integer"}
    if leaf.low is not None:
        found["minimum"] = _whole(leaf.low)
    if leaf.high is not None:
        found["maximum"] = _whole(leaf.high)
    return found


def _decimal(leaf: Number) -> Schema:
    found: Schema = {"type": "number"}
    bounds = {
        "exclusiveMinimum" if leaf.excludes_low else "minimum": leaf.low,
        "exclusiveMaximum" if leaf.excludes_high else "maximum": leaf.high,
    }
    for keyword, value in bounds.items():
        if value is None:
            continue
        if (value * 10**MAX_DECIMALS).denominator != 1 or abs(value) > MAX_NUMBER:
            raise GrammarError(
                f"xgrammar enforces bounds of numbers up to {MAX_NUMBER:g}, with {MAX_DECIMALS} decimals at most; "
                f"'{keyword}' is {float(value)!r}"
            )
        found[keyword] = _exact(value)
    return found


def _multiples(leaf: Number, factor: Fraction) -> Schema:
    if not leaf.is_whole:
        raise GrammarError(
            "xgrammar enforces 'multipleOf' for the type 'integer' only; start with --grammar-backend llguidance",
            keyword="multipleOf",
        )
    step = Fraction(factor.numerator)  # of whole numbers: those of 1.5 are those of 3
    if leaf.low is None and leaf.high is None and step <= MAX_MULTIPLE:
        return {"type": "integer", "multipleOf": int(step)}
    if leaf.low is None or leaf.high is None or leaf.high - leaf.low > step * MAX_VALUES:
        raise GrammarError(
            f"xgrammar enforces 'multipleOf' up to {MAX_MULTIPLE} without bounds, or with both and at most "
            f"{MAX_VALUES} multiples between them",
            keyword="multipleOf",
        )
    first, last = _whole(leaf.low), _whole(leaf.high)  # multiples themselves
    return {"enum": list(range(first, last + 1, int(step)))}
