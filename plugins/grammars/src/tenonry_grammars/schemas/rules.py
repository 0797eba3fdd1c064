"""Forms of values that the keywords of one JSON schema allow. Pure.

Keywords that restrict values by their type are read together, at the position of the first of them; the others, which
hold further schemas or list values, each at its own: so properties keep the order in which they are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tenonry_grammars.schema import RESTRICTING, pointer
from tenonry_grammars.schemas.exclusion import exclusive
from tenonry_grammars.schemas.leaves import (
    ANY,
    NONE,
    Anything,
    Array,
    Conditions,
    Leaf,
    Object,
    Sub,
    TooManyForms,
    Unserved,
    all_but,
    both,
)
from tenonry_grammars.schemas.protocol import SchemaReader, for_dependencies
from tenonry_grammars.schemas.resources import LAST_WITHOUT_SIBLINGS, Place
from tenonry_grammars.schemas.typed import TYPED, typed_leaves
from tenonry_grammars.schemas.values import list_of, names_of, schemas_of, simple_leaves

Rule = Callable[[SchemaReader, Place, Any], list[Leaf]]


def leaves(reader: SchemaReader, place: Place) -> list[Leaf]:
    """The forms of values that a schema allows; `place.schema` is an object."""
    schema: Mapping[str, Any] = place.schema
    if "$ref" in schema and reader.resources.draft <= LAST_WITHOUT_SIBLINGS:
        return _reference(reader, place, "$ref")
    found: list[Leaf] = [Anything()]
    is_typed = False
    for keyword in schema:
        if keyword in TYPED:
            if not is_typed:
                is_typed = True
                found = reader.product(found, typed_leaves(reader, place))
        elif keyword in RULES:
            found = _combined(reader, place, keyword, found)
        elif keyword in RESTRICTING and keyword not in IN_ANOTHER:
            found = reader.product(found, _unserved(place, keyword))
    opposite_seen = _has_opposite(schema)
    for keyword, apply in (
        ("unevaluatedProperties", _other_properties),
        ("unevaluatedItems", _other_items),
    ):
        if schema.get(keyword, True) is not True and opposite_seen:
            found = reader.product(found, _unserved(place, keyword))
        elif schema.get(keyword, True) is not True:
            found = apply(reader, place, found)
    return found


def _combined(reader: SchemaReader, place: Place, keyword: str, found: list[Leaf]) -> list[Leaf]:
    try:
        return reader.product(found, RULES[keyword](reader, place, place.schema[keyword]))
    except TooManyForms as error:
        if error.keyword is None:
            error.path, error.keyword = pointer(place.path), keyword
        raise


def _has_opposite(schema: Any) -> bool:
    """Return True if the same value has a `not`: properties and items that it names count as unevaluated."""
    if isinstance(schema, list):
        return any(map(_has_opposite, schema))
    if not isinstance(schema, dict):
        return False
    return "not" in schema or any(
        _has_opposite(list(inner.values()) if keyword == "dependentSchemas" else inner)
        for keyword in IN_PLACE & schema.keys()
        for inner in (schema[keyword],)
    )


def _reference(reader: SchemaReader, place: Place, keyword: str) -> list[Leaf]:
    target = reader.resources.target(place, keyword)
    if target.schema is True:
        return [Anything()]
    return [Sub((reader.number(target),))]


def _all_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    found: list[Leaf] = [Anything()]
    for index, inner in enumerate(list_of(place.path, "allOf", value)):
        conditions = reader.below(place, ("allOf", str(index)), inner)
        found = reader.product(found, [Sub(conditions)] if conditions else [Anything()])
    return found


def _any_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    options = [
        reader.below(place, ("anyOf", str(index)), inner)
        for index, inner in enumerate(list_of(place.path, "anyOf", value))
    ]
    return [Anything()] if ANY in options else [Sub(conditions) for conditions in options]


def _not(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    return [Sub(reader.below(place, ("not",), value, is_opposite=True))]


def _listed(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    values = list_of(place.path, "enum", value)
    return [*simple_leaves(values), *_large(reader, place, "enum", values)]


def _const(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    return [*simple_leaves([value]), *_large(reader, place, "const", [value])]


def _large(reader: SchemaReader, place: Place, keyword: str, values: list[Any]) -> list[Leaf]:
    """Lists and objects: of each part, that it has its value."""
    found: list[Leaf] = []
    for index, value in enumerate(values):
        steps = (keyword, str(index))
        if isinstance(value, list):
            first = tuple(
                reader.below(place, (*steps, str(at)), {"const": part})
                for at, part in enumerate(value)
            )
            found.append(Array(first, NONE, len(first), len(first), reads_rest=True))
        elif isinstance(value, dict):
            properties = tuple(
                (name, reader.below(place, (*steps, name), {"const": part}))
                for name, part in value.items()
            )
            names = tuple(value)
            found.append(
                Object(properties, (), NONE, names, declared=frozenset(names), reads_rest=True)
            )
    return found


def _condition(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    """`if`: with `then`, or its opposite with `else`."""
    schema = place.schema
    if not {"then", "else"} & set(schema):
        return [Anything()]
    found: list[Leaf] = []
    for keyword, is_opposite in (("then", False), ("else", True)):
        conditions = reader.below(place, ("if",), value, is_opposite=is_opposite)
        whole = both(conditions, reader.below(place, (keyword,), schema.get(keyword, True)))
        found.append(Sub(whole) if whole else Anything())
    return [Anything()] if Anything() in found else found


def _dependencies(reader: SchemaReader, place: Place, value: Any, keyword: str) -> list[Leaf]:
    """Forms of `dependencies`: an object with one property requires others, or has to satisfy a schema."""
    found: list[Leaf] = [Anything()]
    for name, inner in schemas_of(place.path, keyword, value).items():
        has = Object(required=(name,))
        if isinstance(inner, list):
            required = tuple(dict.fromkeys((name, *names_of(place.path, keyword, inner))))
            then: list[Leaf] = [replace(has, required=required)]
        else:
            conditions = reader.below(place, (keyword, name), inner)
            if not conditions:
                continue
            then = reader.product([has], [Sub(conditions)])
        lacks = Object(((name, NONE),))
        found = reader.product(found, [*all_but("object"), lacks, *then])
    return found


def _unserved(place: Place, keyword: str) -> list[Leaf]:
    if (
        keyword == "contains"
        and place.schema.get("minContains") == 0
        and "maxContains" not in place.schema
    ):
        return [Anything()]
    kind = "array" if "ontains" in keyword or "Items" in keyword else "object"
    text = f"'{keyword}' is not served; leave it out"
    return [*all_but(kind), Unserved(frozenset({kind}), place.location(keyword), text)]


# ---------------------------------------------------------------------- unevaluated
def _other_properties(reader: SchemaReader, place: Place, found: list[Leaf]) -> list[Leaf]:
    """For properties of which no keyword speaks, here or in what holds in the same place."""
    inner = reader.below(place, ("unevaluatedProperties",), place.schema["unevaluatedProperties"])
    return [
        _bounded(leaf, inner) if isinstance(leaf, Object) else leaf
        for leaf in _worked_out(reader, found)
    ]


def _bounded(leaf: Object, inner: Conditions) -> Object:
    if leaf.reads_rest:
        return leaf
    properties = tuple(
        (name, conditions if name in leaf.declared else both(conditions, inner))
        for name, conditions in leaf.properties
    )
    return replace(leaf, properties=properties, rest=both(leaf.rest, inner), reads_rest=True)


def _other_items(reader: SchemaReader, place: Place, found: list[Leaf]) -> list[Leaf]:
    inner = reader.below(place, ("unevaluatedItems",), place.schema["unevaluatedItems"])
    return [
        replace(leaf, rest=both(leaf.rest, inner), reads_rest=True)
        if isinstance(leaf, Array) and not leaf.reads_rest
        else leaf
        for leaf in _worked_out(reader, found)
    ]


def _worked_out(reader: SchemaReader, found: list[Leaf]) -> list[Leaf]:
    """Without a form that stands for others."""
    worked_out = reader.expanded(found)
    return all_but() if worked_out == [Anything()] else worked_out


def _one_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    return exclusive(reader, place, list_of(place.path, "oneOf", value))


RULES: dict[str, Rule] = {
    "$ref": lambda reader, place, _: _reference(reader, place, "$ref"),
    "$dynamicRef": lambda reader, place, _: _reference(reader, place, "$dynamicRef"),
    "$recursiveRef": lambda reader, place, _: _reference(reader, place, "$recursiveRef"),
    "allOf": _all_of,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "not": _not,
    "enum": _listed,
    "const": _const,
    "if": _condition,
    **for_dependencies(_dependencies),
}
IN_PLACE = frozenset({"allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas"})
# Read with another keyword; without it, they say nothing.
IN_ANOTHER = frozenset(
    {"then", "else", "minContains", "maxContains", "unevaluatedProperties", "unevaluatedItems"}
)
