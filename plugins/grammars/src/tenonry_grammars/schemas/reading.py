"""Reads a JSON schema: which forms of values it allows, in each place of a value. Pure.

`Reader.leaves` gives the forms for the conditions of a place; the conditions of places within them are in the forms.
What no grammar holds is a form, too (`Unserved`), which is an error once it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from tenonry_grammars.base import GrammarError
from tenonry_grammars.derivatives import are_apart
from tenonry_grammars.nodes import Node, finite_texts
from tenonry_grammars.schema import MAX_DEPTH, pointer
from tenonry_grammars.schemas import opposites, rules
from tenonry_grammars.schemas.expressions import expression, matches
from tenonry_grammars.schemas.leaves import (
    ANY,
    Anything,
    Array,
    Conditions,
    Flag,
    Leaf,
    Null,
    Number,
    Object,
    Path,
    Sub,
    Text,
    TooManyForms,
    Unserved,
    merged,
)
from tenonry_grammars.schemas.look_ahead import conditions_of
from tenonry_grammars.schemas.resources import Place, Resources

Result = TypeVar("Result")

MAX_LEAVES = 1024  # of one place
MAX_LOOK = 6  # places within places that are looked at to find that nothing is allowed
MAX_NAMES = 32  # of a pattern that become properties


class LeadsBack(GrammarError):
    """A schema is what it is made of."""


class Condition(NamedTuple):
    """A schema, or its opposite."""

    place: Place
    is_opposite: bool


def _without_nulls(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without keywords that are null: serialisers of other languages write absent ones so."""
    return {name: value for name, value in schema.items() if value is not None or name == "const"}


class Reader:
    """Reads one schema."""

    def __init__(self, schema: Any) -> None:
        self.resources = Resources(schema)
        self._conditions: list[Condition] = []
        self._numbers: dict[tuple[Path, bool, int], int] = {}
        self._leaves: dict[Conditions, list[Leaf]] = {ANY: [Anything()]}
        self._open: set[Conditions] = set()
        self._made: list[
            Any
        ] = []  # schemas that were put together here, which must outlive their ids
        self.number(Place((), False, ""))  # the first one allows nothing
        self.root: Conditions = (self.number(self.resources.root),)

    # ------------------------------------------------------------------ conditions
    def number(self, place: Place, *, is_opposite: bool = False) -> int:
        """The number of the condition that this schema, or its opposite, holds."""
        if len(place.path) > 2 * MAX_DEPTH:
            raise GrammarError(
                f"schemas are nested more than {MAX_DEPTH} deep", pointer(place.path)
            )
        key = (place.path, is_opposite, id(place.schema))
        if key not in self._numbers:
            self._numbers[key] = len(self._conditions)
            self._conditions.append(Condition(place, is_opposite))
            self._made.append(place.schema)
        return self._numbers[key]

    def path(self, conditions: Conditions) -> Path:
        """The path of the first schema of these conditions."""
        return self._conditions[conditions[0]].place.path

    def below(
        self, place: Place, steps: Sequence[str], schema: Any, *, is_opposite: bool = False
    ) -> Conditions:
        """The condition of a schema within another one; none where it allows anything."""
        if schema is True and not is_opposite:
            return ANY
        inner = self.resources.at((*place.path, *steps), schema, place.base)
        if is_opposite:
            inner = inner._replace(negated_by=place.location(steps[0]))
        return (self.number(inner, is_opposite=is_opposite),)

    # ------------------------------------------------------------------ forms
    def leaves(self, conditions: Conditions) -> list[Leaf]:
        """The forms of values that satisfy all the conditions. Raises GrammarError."""
        found = self._leaves.get(conditions)
        if found is not None:
            return found
        if conditions in self._open:
            where = pointer(self.path(conditions))
            raise LeadsBack("nothing satisfies it: it leads back to itself", where)
        self._open.add(conditions)
        try:
            if len(conditions) == 1:
                found = self._of_one(self._conditions[conditions[0]])
            else:
                found = [Anything()]
                for number in conditions:
                    found = self.product(found, self.leaves((number,)))
        finally:
            self._open.discard(conditions)
        self._leaves[conditions] = found
        return found

    def _of_one(self, condition: Condition) -> list[Leaf]:
        place = condition.place
        if isinstance(place.schema, bool):
            return [Anything()] if place.schema is not condition.is_opposite else []
        if not isinstance(place.schema, dict):
            raise GrammarError(
                f"a schema is an object, not a {type(place.schema).__name__}", pointer(place.path)
            )
        if None in place.schema.values():
            place = place._replace(schema=_without_nulls(place.schema))
        try:
            if condition.is_opposite:
                return opposites.leaves(self, place)
            return rules.leaves(self, place)
        except GrammarError as error:
            if error.path is None:
                error.path = pointer(place.path)
            raise

    def product(self, ones: list[Leaf], others: list[Leaf]) -> list[Leaf]:
        """Intersection of two lists of forms. Raises GrammarError for too many combinations."""
        if any(isinstance(leaf, Anything) for leaf in ones):
            return others
        if any(isinstance(leaf, Anything) for leaf in others):
            return ones
        ones = self.expanded(ones)
        others = self.expanded(others)
        if Anything() in ones or Anything() in others:
            return others if Anything() in ones else ones
        found: dict[Leaf, None] = {}
        for one, other in product(ones, others):
            leaf = self._both(one, other)
            if leaf is not None:
                found[leaf] = None
                if len(found) > MAX_LEAVES:
                    raise TooManyForms(
                        f"its 'anyOf', 'oneOf', 'if' and 'dependencies' combine in more than {MAX_LEAVES} ways; use "
                        "fewer"
                    )
        return list(found)

    def _both(self, one: Leaf, other: Leaf) -> Leaf | None:
        if isinstance(one, Unserved) or isinstance(other, Unserved):
            leaf, beside = (one, other) if isinstance(one, Unserved) else (other, one)
            if not isinstance(leaf, Unserved):
                return None
            kinds = beside.kinds if isinstance(beside, Unserved) else {getattr(beside, "kind", "")}
            shared = leaf.kinds & kinds
            weak = leaf.is_opposite or (isinstance(beside, Unserved) and beside.is_opposite)
            return Unserved(shared, leaf.location, leaf.text, weak) if shared else None
        if isinstance(one, Anything | Sub) or isinstance(other, Anything | Sub):
            raise TypeError(f"{one} and {other} are not worked out")
        return merged(one, other, matches)

    def expanded(self, leaves: list[Leaf]) -> list[Leaf]:
        """The same without `Sub`."""
        found: dict[Leaf, None] = {}
        for leaf in leaves:
            if isinstance(leaf, Sub):
                found.update(dict.fromkeys(self.expanded(self.leaves(leaf.conditions))))
            else:
                found[leaf] = None
        if any(isinstance(leaf, Anything) for leaf in found):
            return [Anything()]
        return list(found)

    # ------------------------------------------------------------------ nothing
    def is_empty(self, conditions: Conditions, look: int = MAX_LOOK) -> bool:
        """Return True if it is certain that no value satisfies the conditions."""
        if not conditions or look == 0:
            return False
        try:
            return all(self.has_no_value(leaf, look) for leaf in self.leaves(conditions))
        except LeadsBack:  # to what is being worked out
            return False

    def has_no_value(self, leaf: Leaf, look: int = MAX_LOOK) -> bool:
        """Return True if it is certain that no value has this form."""
        if isinstance(leaf, Sub):
            return self.is_empty(leaf.conditions, look - 1)
        if isinstance(leaf, Array):
            items = [
                leaf.first[place] if place < len(leaf.first) else leaf.rest
                for place in range(min(leaf.low, 64))
            ]
            return any(self.is_empty(conditions, look - 1) for conditions in dict.fromkeys(items))
        if isinstance(leaf, Object):
            known = dict(leaf.properties)
            return any(
                self.is_empty(known.get(name, leaf.rest), look - 1)
                for name in leaf.required
                if name in known or not leaf.patterns
            )
        if isinstance(leaf, Text):
            patterns = leaf.patterns
            return any(
                are_apart(one, other)
                for place, one in enumerate(patterns)
                for other in patterns[place + 1 :]
            )
        return False

    def each_value(self, conditions: Conditions, most: int) -> list[Conditions] | None:
        """Conditions of each of the values that there are; None for more than `most`, or for arrays and objects."""
        values: list[Any] = []
        for leaf in self.expanded(self.leaves(conditions)):
            if isinstance(leaf, Null):
                values.append(None)
            elif isinstance(leaf, Flag):
                values.extend(leaf.values)
            elif isinstance(leaf, Text | Number) and leaf.values is not None:
                values.extend(
                    value
                    if isinstance(value, str)
                    else int(value)
                    if value.denominator == 1
                    else float(value)
                    for value in leaf.values
                )
            else:
                return None
        if len(values) > most:
            return None
        return [
            self.below(self.resources.root, ("const", repr(value)), {"const": value})
            for value in values
        ]

    # ------------------------------------------------------------------ expressions
    def pattern(self, place: Place, text: Any, *, widest: bool = False) -> Node:
        """The expression of a schema, for a whole text; see `parsed`. Raises GrammarError."""
        if not isinstance(text, str):
            raise GrammarError(f"a pattern is a text, not {text!r:.64}", pointer(place.path))
        return _located(place, lambda: expression(text, widest=widest))

    def conditions_of_pattern(self, place: Place, text: Any) -> tuple[Node, ...]:
        """The expressions that together are the pattern of a text. Raises GrammarError."""
        if not isinstance(text, str):
            raise GrammarError(f"a pattern is a text, not {text!r:.64}", pointer(place.path))
        return _located(place, lambda: conditions_of(text))

    def names_of_pattern(self, node: Node) -> list[str] | None:
        """All names that a pattern has, where these are few."""
        return finite_texts(node, MAX_NAMES)


def _located(place: Place, read: Callable[[], Result]) -> Result:
    """Raises errors of `read` with the place's path."""
    try:
        return read()
    except GrammarError as error:
        raise type(error)(str(error), pointer(place.path)) from None
