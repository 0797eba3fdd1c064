"""Values and bounds of a JSON schema's keywords, with an error at their path for any other. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tenonry_grammars.base import GrammarError
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.leaves import KINDS, Flag, Leaf, Null, Number, Path, Text

TYPES = (*KINDS, "integer")
MAX_COUNT = 1 << 32


def is_number(value: Any) -> bool:
    """Return True for a number that JSON can represent."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def number_of(path: Path, keyword: str, value: Any) -> Fraction:
    """The number as it is written in decimals. Raises GrammarError."""
    if not is_number(value):
        raise GrammarError(f"'{keyword}' is a number, not {value!r:.64}", pointer(path))
    return Fraction(repr(value))


def count_of(path: Path, keyword: str, value: Any) -> int:
    """Raises GrammarError for what is no number of things."""
    if not is_number(value) or value != int(value) or not 0 <= value <= MAX_COUNT:
        raise GrammarError(
            f"'{keyword}' is a whole number from 0 on, not {value!r:.64}", pointer(path)
        )
    return int(value)


def names_of(path: Path, keyword: str, value: Any) -> list[str]:
    """Raises GrammarError for what is no list of names."""
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise GrammarError(f"'{keyword}' is a list of names, not {value!r:.64}", pointer(path))
    return value


def schemas_of(path: Path, keyword: str, value: Any) -> dict[str, Any]:
    """Raises GrammarError for what is no object of schemas."""
    if not isinstance(value, dict):
        raise GrammarError(f"'{keyword}' is an object of schemas, not {value!r:.64}", pointer(path))
    return value


def list_of(path: Path, keyword: str, value: Any) -> list[Any]:
    """Raises GrammarError for what is no list with entries."""
    if not isinstance(value, list) or not value:
        raise GrammarError(
            f"'{keyword}' is a list that is not empty, not {value!r:.64}", pointer(path)
        )
    return value


def types_of(path: Path, value: Any) -> list[str]:
    """The types that `type` names, in their order. Raises GrammarError."""
    types = value if isinstance(value, list) else [value]
    for name in types:
        if name not in TYPES:
            raise GrammarError(
                f"'type' is {name!r:.64}; it must be one of {', '.join(TYPES)}", pointer(path)
            )
    if not types:
        raise GrammarError("'type' is an empty list: nothing satisfies it", pointer(path))
    return list(dict.fromkeys(types))


def simple_leaves(values: Iterable[Any]) -> list[Leaf]:
    """The forms of listed values, of those that are neither lists nor objects."""
    found: list[Leaf] = []
    flags = []
    numbers = []
    texts = []
    for value in values:
        if value is None:
            found.append(Null())
        elif isinstance(value, bool):
            flags.append(value)
        elif isinstance(value, str):
            texts.append(value)
        elif is_number(value):
            numbers.append(Fraction(repr(value)))
    if texts:
        found.append(Text(values=tuple(dict.fromkeys(texts))))
    if numbers:
        found.append(Number(values=tuple(dict.fromkeys(numbers))))
    if flags:
        found.append(Flag(tuple(dict.fromkeys(flags))))
    return found
