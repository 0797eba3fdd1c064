"""Forms of values: what a schema allows is a list of them, and both of two schemas what is in both of two lists. Pure.

A place within a value has a `Conditions`: numbers of the schemas that all hold there, in their order, none for any
value. What these allow is worked out when it is needed, so schemas that lead back to themselves are no matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple

from tenonry_grammars.base import GrammarError
from tenonry_grammars.nodes import Node

Conditions = tuple[int, ...]
Path = tuple[str, ...]
KINDS = ("null", "boolean", "number", "string", "array", "object")
ANY: Conditions = ()
NONE: Conditions = (0,)  # of the schema `false`, which is the first


class Location(NamedTuple):
    """A keyword of the schema at a path."""

    path: Path
    keyword: str


@dataclass(frozen=True, slots=True)
class Anything:
    """Any value."""


@dataclass(frozen=True, slots=True)
class Null:
    """The value `null`."""

    kind = "null"


@dataclass(frozen=True, slots=True)
class Flag:
    """One of the truth values `values`."""

    kind = "boolean"
    values: tuple[bool, ...] = (True, False)


@dataclass(frozen=True, slots=True)
class Number:
    """`values`: one of these, where they are listed. `factor`: a whole multiple of it."""

    kind = "number"
    is_whole: bool = False
    low: Fraction | None = None
    high: Fraction | None = None
    excludes_low: bool = False
    excludes_high: bool = False
    factor: Fraction | None = None
    values: tuple[Fraction, ...] | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """`patterns` match the whole text, all of them. `values`: one of these; `others`: none of these."""

    kind = "string"
    low: int = 0
    high: int | None = None
    patterns: tuple[Node, ...] = ()
    values: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Array:
    """`rest`: of items behind the `first` ones. `unique`: the keyword that forbids equal items."""

    kind = "array"
    first: tuple[Conditions, ...] = ()
    rest: Conditions = ANY
    low: int = 0
    high: int | None = None
    unique: Location | None = None
    reads_rest: bool = False  # a keyword speaks of all items


@dataclass(frozen=True, slots=True)
class Object:
    """`rest`: of properties that neither `properties` nor `patterns` name; the latter match whole names.

    `declared` are names of which a schema speaks, and `expected` those that it has to: what is only forbidden by the
    opposite of a schema is no property to write. For each set in `outside`, some property has a name that is not in it.
    `sources`: where the keywords stand that may be refused.
    """

    kind = "object"
    properties: tuple[tuple[str, Conditions], ...] = ()
    patterns: tuple[tuple[Node, Conditions], ...] = ()
    rest: Conditions = ANY
    required: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    names: Conditions = ANY
    declared: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()
    outside: tuple[frozenset[str], ...] = ()
    reads_rest: bool = False
    sources: tuple[Location, ...] = field(default=(), compare=False)

    def source(self, *keywords: str) -> Location:
        """The first of these keywords, or of all, that the form comes from."""
        found = [each for each in self.sources if each.keyword in keywords]
        return next(iter((*found, *self.sources)), Location((), ""))


@dataclass(frozen=True, slots=True)
class Sub:
    """Forms that these conditions allow, not expanded yet."""

    conditions: Conditions


@dataclass(frozen=True, slots=True)
class Unserved:
    """Values of some kinds of which a schema says what no grammar holds. `is_opposite`: as a part of the opposite of a
    schema, which can do without it where there are other parts.
    """

    kinds: frozenset[str]
    location: Location
    text: str
    is_opposite: bool = False


Typed = Null | Flag | Number | Text | Array | Object
Leaf = Anything | Typed | Sub | Unserved
EVERY: tuple[Typed, ...] = (Null(), Flag(), Number(), Text(), Array(), Object())


class TooManyForms(GrammarError):
    """The parts of a schema combine in too many ways."""


def all_but(*kinds: str) -> list[Leaf]:
    """Any value of other kinds."""
    return [leaf for leaf in EVERY if leaf.kind not in kinds]


def both(one: Conditions, other: Conditions) -> Conditions:
    """Conjunction of both: those of the first one, then further ones of the second."""
    if not one or not other:
        return one or other
    return one + tuple(number for number in other if number not in one)


def lowest(one: int | None, other: int | None) -> int | None:
    """Lower of two upper bounds; None for no bound."""
    found = [value for value in (one, other) if value is not None]
    return min(found, default=None)


def merged(one: Typed, other: Typed, matches: Callable[[Node, str], bool]) -> Typed | None:
    """The values of both forms; None where there are none. `matches` compares a pattern with a text."""
    if isinstance(one, Flag) and isinstance(other, Flag):
        values = tuple(value for value in one.values if value in other.values)
        return Flag(values) if values else None
    if isinstance(one, Number) and isinstance(other, Number):
        return _numbers(one, other)
    if isinstance(one, Text) and isinstance(other, Text):
        return texts(one, other, matches)
    if isinstance(one, Array) and isinstance(other, Array):
        return _arrays(one, other)
    if isinstance(one, Object) and isinstance(other, Object):
        return _objects(one, other, matches)
    return one if one.kind == other.kind else None


# ---------------------------------------------------------------------- numbers
def _numbers(one: Number, other: Number) -> Number | None:
    low, excludes_low = (
        max(
            (value, excludes)
            for value, excludes in ((one.low, one.excludes_low), (other.low, other.excludes_low))
            if value is not None
        )
        if one.low is not None or other.low is not None
        else (None, False)
    )
    high, includes_high = (
        min(
            (value, not excludes)
            for value, excludes in (
                (one.high, one.excludes_high),
                (other.high, other.excludes_high),
            )
            if value is not None
        )
        if one.high is not None or other.high is not None
        else (None, True)
    )
    factor = one.factor or other.factor
    if one.factor is not None and other.factor is not None:
        factor = _common_multiple(one.factor, other.factor)
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = tuple(value for value in one.values if value in other.values)
    is_whole = one.is_whole or other.is_whole
    return number(Number(is_whole, low, high, excludes_low, not includes_high, factor, values))


def _common_multiple(one: Fraction, other: Fraction) -> Fraction:
    denominator = math.lcm(one.denominator, other.denominator)
    return Fraction(math.lcm(int(one * denominator), int(other * denominator)), denominator)


def number(form: Number) -> Number | None:
    """The form with tight bounds; None where no number has it."""
    if form.values is not None:
        values = tuple(value for value in form.values if _fits(form, value))
        return Number(values=values) if values else None
    step = form.factor
    if form.is_whole:
        step = Fraction(1) if step is None else _common_multiple(step, Fraction(1))
    low, high = form.low, form.high
    if step is not None and low is not None:
        low = math.ceil(low / step) * step
        low += step if form.excludes_low and low == form.low else 0
    if step is not None and high is not None:
        high = math.floor(high / step) * step
        high -= step if form.excludes_high and high == form.high else 0
    excludes_low = form.excludes_low and step is None
    excludes_high = form.excludes_high and step is None
    if (
        low is not None
        and high is not None
        and (low > high or (low == high and (excludes_low or excludes_high)))
    ):
        return None
    return replace(form, low=low, high=high, excludes_low=excludes_low, excludes_high=excludes_high)


def _fits(form: Number, value: Fraction) -> bool:
    if (form.is_whole and value.denominator != 1) or (
        form.factor and (value / form.factor).denominator != 1
    ):
        return False
    if form.low is not None and (value < form.low or (form.excludes_low and value == form.low)):
        return False
    return form.high is None or value < form.high or (value == form.high and not form.excludes_high)


# ---------------------------------------------------------------------- texts
def texts(one: Text, other: Text, matches: Callable[[Node, str], bool]) -> Text | None:
    """The texts of both forms; None where there are none for certain."""
    values = one.values if other.values is None else other.values
    if one.values is not None and other.values is not None:
        values = tuple(value for value in one.values if value in other.values)
    low = max(one.low, other.low)
    high = lowest(one.high, other.high)
    patterns = one.patterns + tuple(node for node in other.patterns if node not in one.patterns)
    others = tuple(dict.fromkeys(one.others + other.others))
    if values is not None:
        values = tuple(
            value
            for value in values
            if low <= len(value)
            and (high is None or len(value) <= high)
            and value not in others
            and all(matches(node, value) for node in patterns)
        )
        return Text(values=values) if values else None
    if high is not None and low > high:
        return None
    return Text(low, high, patterns, None, others)


# ---------------------------------------------------------------------- arrays and objects
def _arrays(one: Array, other: Array) -> Array | None:
    length = max(len(one.first), len(other.first))
    first = tuple(both(item(one, place), item(other, place)) for place in range(length))
    low = max(one.low, other.low)
    high = lowest(one.high, other.high)
    if high is not None and low > high:
        return None
    unique = one.unique if one.unique is not None else other.unique
    return Array(
        first, both(one.rest, other.rest), low, high, unique, one.reads_rest or other.reads_rest
    )


def item(array: Array, place: int) -> Conditions:
    """Conditions of the item at this index."""
    return array.first[place] if place < len(array.first) else array.rest


def of_property(form: Object, name: str, matches: Callable[[Node, str], bool]) -> Conditions:
    """Conditions of the property of this name."""
    found = dict(form.properties).get(name)
    return _of_other(form, name, matches) if found is None else found


def _of_other(form: Object, name: str, matches: Callable[[Node, str], bool]) -> Conditions:
    """Conditions of a property that is none of the form's `properties`."""
    conditions = [inner for node, inner in form.patterns if matches(node, name)]
    if not conditions:
        return form.rest
    whole = ANY
    for inner in conditions:
        whole = both(whole, inner)
    return whole


def _objects(one: Object, other: Object, matches: Callable[[Node, str], bool]) -> Object | None:
    names = dict.fromkeys([name for name, _ in (*one.properties, *other.properties)])
    known, others = dict(one.properties), dict(other.properties)
    properties = tuple(
        (
            name,
            both(
                known[name] if name in known else _of_other(one, name, matches),
                others[name] if name in others else _of_other(other, name, matches),
            ),
        )
        for name in names
    )
    mine = dict(one.patterns)
    theirs = dict(other.patterns)
    # Patterns of both that overlap are refused when they are written, so names of one are no names of another.
    patterns = tuple(
        (node, both(mine.get(node, one.rest), theirs.get(node, other.rest)))
        for node in dict.fromkeys([*mine, *theirs])
    )
    low = max(one.low, other.low)
    high = lowest(one.high, other.high)
    required = tuple(dict.fromkeys(one.required + other.required))
    if high is not None and max(low, len(required)) > high:
        return None
    return Object(
        properties, patterns, both(one.rest, other.rest), required, low, high, both(one.names, other.names),
        one.declared | other.declared, one.expected | other.expected,
        tuple(dict.fromkeys(one.outside + other.outside)), one.reads_rest or other.reads_rest,
        tuple(dict.fromkeys(one.sources + other.sources)),
    )  # fmt: skip
