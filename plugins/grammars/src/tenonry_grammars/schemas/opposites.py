"""The opposite of a JSON schema: values that break one of its keywords. Pure.

What breaks a keyword in a way that no grammar holds is left out where there are other ways.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

from tenonry_grammars.automata import combined
from tenonry_grammars.derivatives import NOTHING
from tenonry_grammars.schema import RESTRICTING, pointer
from tenonry_grammars.schemas.formats import FORMATS, UNSERVED
from tenonry_grammars.schemas.leaves import (
    ANY,
    EVERY,
    NONE,
    Anything,
    Array,
    Conditions,
    Flag,
    Leaf,
    Location,
    Number,
    Object,
    Sub,
    Text,
    Unserved,
    both,
)
from tenonry_grammars.schemas.protocol import SchemaReader, for_dependencies
from tenonry_grammars.schemas.resources import LAST_WITHOUT_SIBLINGS, Place
from tenonry_grammars.schemas.values import (
    count_of,
    list_of,
    names_of,
    number_of,
    schemas_of,
    simple_leaves,
    types_of,
)

Opposite = Callable[[SchemaReader, Place, Any], list[Leaf]]
MAX_ONE_OF = 4  # schemas of which two may hold
HELP = "list the values that are allowed, or use 'anyOf' instead of 'oneOf'"
MAX_NUMBERS = 16  # listed ones between which all others lie


def leaves(reader: SchemaReader, place: Place) -> list[Leaf]:
    """The forms of values that a schema does not allow; `place.schema` is an object."""
    schema: Mapping[str, Any] = place.schema
    if "$ref" in schema and reader.resources.draft <= LAST_WITHOUT_SIBLINGS:
        schema = {"$ref": schema["$ref"]}
    found: list[Leaf] = []
    for keyword, value in schema.items():
        if keyword in OPPOSITES:
            found += OPPOSITES[keyword](reader, place, value)
        elif (
            keyword in RESTRICTING and keyword not in IN_ANOTHER and not _allows_all(keyword, value)
        ):
            found += _unserved(place, keyword)
    return list(dict.fromkeys(found))


def _allows_all(keyword: str, value: Any) -> bool:
    if keyword == "format":
        return value not in FORMATS and value not in UNSERVED
    return value is True or value in ({}, []) or (keyword == "uniqueItems" and value is False)


def _unserved(place: Place, keyword: str) -> list[Leaf]:
    kinds = [kind for kind, keywords in KINDS_OF.items() if keyword in keywords]
    what = f"values that break '{keyword}': {place.schema[keyword]!r:.64}"
    return [_refused(place, keyword, what, *(kinds or KINDS_OF))]


def _refused(place: Place, keyword: str, what: str, *kinds: str) -> Unserved:
    """Values of these kinds that the opposite of a schema allows and no grammar holds."""
    where = f" (at {pointer(place.path)})" if place.path else ""
    location = place.location(keyword)
    text = f"{what}{where}, which '{location.keyword}' needs, are not served; {HELP}"
    return Unserved(frozenset(kinds), location, text, is_opposite=True)


def _sources(place: Place, keyword: str) -> tuple[Location, ...]:
    return (place.location(keyword),)


KINDS_OF = {
    "number": frozenset({"multipleOf"}),
    "string": frozenset({"pattern", "format"}),
    "array": frozenset({"uniqueItems", "contains", "unevaluatedItems"}),
    "object": frozenset({
        "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties",
    }),
    "null": frozenset(),
    "boolean": frozenset(),
}  # fmt: skip


def _type(_: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    types = types_of(place.path, value)
    found: list[Leaf] = [
        leaf
        for leaf in EVERY
        if leaf.kind not in types and not (leaf.kind == "number" and "integer" in types)
    ]
    if "integer" in types and "number" not in types:
        found.append(_refused(place, "type", "numbers that are no integer", "number"))
    return found


def _values(_: SchemaReader, place: Place, values: list[Any]) -> list[Leaf]:
    found: list[Leaf] = []
    simple = {getattr(leaf, "kind", ""): leaf for leaf in simple_leaves(values)}
    for leaf in EVERY:
        named = simple.get(leaf.kind)
        if isinstance(named, Text):
            found.append(Text(others=named.values or ()))
        elif isinstance(named, Flag):
            rest = tuple(value for value in (True, False) if value not in named.values)
            found += [Flag(rest)] if rest else []
        elif isinstance(named, Number):
            found += _between(named)
        elif named is None:
            found.append(leaf)
    large = {"array": list, "object": dict}
    for kind, of_kind in large.items():
        if any(isinstance(value, of_kind) for value in values):
            found = [leaf for leaf in found if getattr(leaf, "kind", "") != kind]
            found.append(_refused(place, "enum", f"{kind}s that are none of the listed ones", kind))
    return found


def _between(named: Number) -> list[Leaf]:
    """All numbers but the listed ones."""
    values = sorted(named.values or ())
    if len(values) > MAX_NUMBERS:
        values = [values[0], values[-1]]  # none of what lies between them
        return [
            Number(high=values[0], excludes_high=True),
            Number(low=values[1], excludes_low=True),
        ]
    ends = [None, *values, None]
    return [
        Number(low=low, high=high, excludes_low=low is not None, excludes_high=high is not None)
        for low, high in pairwise(ends)
    ]


def _bound(keyword: str) -> Opposite:
    def opposite(_: SchemaReader, place: Place, value: Any) -> list[Leaf]:
        if isinstance(value, bool):
            name = "minimum" if keyword == "exclusiveMinimum" else "maximum"
            if not value or name not in place.schema:
                return []
            edge = number_of(place.path, name, place.schema[name])
            return [Number(values=(edge,))]
        edge = number_of(place.path, keyword, value)
        if "inimum" in keyword:
            return [Number(high=edge, excludes_high=keyword == "minimum")]
        return [Number(low=edge, excludes_low=keyword == "maximum")]

    return opposite


def _count(keyword: str, below: Callable[[int], Leaf], above: Callable[[int], Leaf]) -> Opposite:
    def opposite(_: SchemaReader, place: Place, value: Any) -> list[Leaf]:
        count = count_of(place.path, keyword, value)
        if keyword.startswith("max"):
            return [above(count + 1)]
        return [below(count - 1)] if count else []

    return opposite


def _pattern(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    node = reader.pattern(place, value, widest=True)
    few = reader.names_of_pattern(node)
    if few is not None:
        return [Text(others=tuple(few))]
    others = combined([node], lambda matched: not matched[0])
    if others is None:
        return _unserved(place, "pattern")
    return [] if others == NOTHING else [Text(patterns=(others,))]


def _required(_: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    return [
        Object(((name, NONE),), sources=_sources(place, "required"))
        for name in names_of(place.path, "required", value)
    ]


def _properties(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    found: list[Leaf] = []
    for name, inner in schemas_of(place.path, "properties", value).items():
        opposite = reader.below(place, ("properties", name), inner, is_opposite=True)
        if not reader.is_empty(opposite):
            found.append(
                Object(
                    ((name, opposite),),
                    required=(name,),
                    expected=frozenset({name}),
                    sources=_sources(place, "properties"),
                )
            )
    return found


def _items(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    """The first of the items that it speaks of breaks it; that another one does is left out."""
    if isinstance(value, list):
        return _prefix(reader, place, value, "items")
    return _item(reader, place, "items", len(place.schema.get("prefixItems", ())))


def _additional_items(reader: SchemaReader, place: Place, _: Any) -> list[Leaf]:
    items = place.schema.get("items")
    return _item(reader, place, "additionalItems", len(items)) if isinstance(items, list) else []


def _item(reader: SchemaReader, place: Place, keyword: str, index: int) -> list[Leaf]:
    """The item at `index` breaks the keyword."""
    opposite = reader.below(place, (keyword,), place.schema[keyword], is_opposite=True)
    return [] if reader.is_empty(opposite) else [_broken_at(index, opposite)]


def _prefix(reader: SchemaReader, place: Place, value: Any, keyword: str) -> list[Leaf]:
    """One of the items breaks the schema at its place."""
    opposites = [
        reader.below(place, (keyword, str(index)), inner, is_opposite=True)
        for index, inner in enumerate(list_of(place.path, keyword, value))
    ]
    return [
        _broken_at(index, opposite)
        for index, opposite in enumerate(opposites)
        if not reader.is_empty(opposite)
    ]


def _broken_at(index: int, opposite: Conditions) -> Array:
    return Array((*(ANY,) * index, opposite), low=index + 1)


def _additional(_: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    """A property has another name than those of the schema, if no others are allowed."""
    if value is not False or place.schema.get("patternProperties"):
        return (
            []
            if _allows_all("additionalProperties", value)
            else _unserved(place, "additionalProperties")
        )
    known = schemas_of(place.path, "properties", place.schema.get("properties", {}))
    sources = _sources(place, "additionalProperties")
    return [Object(outside=(frozenset(known),), sources=sources)]


def _one_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    """None of the schemas holds, or two of them."""
    schemas = list_of(place.path, "oneOf", value)
    if len(schemas) > MAX_ONE_OF:
        return _unserved(place, "oneOf")
    none: list[Leaf] = [Anything()]
    options = []
    for index, inner in enumerate(schemas):
        steps = ("oneOf", str(index))
        options.append(reader.below(place, steps, inner))
        none = reader.product(none, [Sub(reader.below(place, steps, inner, is_opposite=True))])
    pairs = [both(one, other) for one, other in combinations(options, 2)]
    return [*none, *(Sub(pair) if pair else Anything() for pair in pairs)]


def _all_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    return [
        Sub(reader.below(place, ("allOf", str(index)), inner, is_opposite=True))
        for index, inner in enumerate(list_of(place.path, "allOf", value))
    ]


def _any_of(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    found: list[Leaf] = [Anything()]
    for index, inner in enumerate(list_of(place.path, "anyOf", value)):
        opposite = reader.below(place, ("anyOf", str(index)), inner, is_opposite=True)
        found = reader.product(found, [Sub(opposite)])
    return found


def _not(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    inner = reader.below(place, ("not",), value)
    return [Sub(inner)] if inner else [Anything()]


def _reference(reader: SchemaReader, place: Place, _: Any) -> list[Leaf]:
    target = reader.resources.target(place, "$ref")
    negated = target._replace(negated_by=place.location("$ref"))
    return [Sub((reader.number(negated, is_opposite=True),))]


def _condition(reader: SchemaReader, place: Place, value: Any) -> list[Leaf]:
    found: list[Leaf] = []
    for keyword, is_opposite in (("then", False), ("else", True)):
        if keyword in place.schema:
            conditions = reader.below(place, ("if",), value, is_opposite=is_opposite)
            broken = reader.below(place, (keyword,), place.schema[keyword], is_opposite=True)
            found.append(Sub(both(conditions, broken)))
    return found


def _dependencies(reader: SchemaReader, place: Place, value: Any, keyword: str) -> list[Leaf]:
    found: list[Leaf] = []
    for name, inner in schemas_of(place.path, keyword, value).items():
        has = Object(required=(name,), sources=_sources(place, keyword))
        if isinstance(inner, list):
            found += [
                replace(has, properties=((other, NONE),))
                for other in names_of(place.path, keyword, inner)
            ]
        else:
            broken = reader.below(place, (keyword, name), inner, is_opposite=True)
            found += reader.product([has], [Sub(broken)])
    return found


OPPOSITES: dict[str, Opposite] = {
    "type": _type,
    "enum": lambda reader, place, value: _values(reader, place, list_of(place.path, "enum", value)),
    "const": lambda reader, place, value: _values(reader, place, [value]),
    "pattern": _pattern,
    "required": _required,
    "properties": _properties,
    "items": _items,
    "prefixItems": lambda reader, place, value: _prefix(reader, place, value, "prefixItems"),
    "additionalItems": _additional_items,
    "additionalProperties": _additional,
    "oneOf": _one_of,
    "allOf": _all_of,
    "anyOf": _any_of,
    "not": _not,
    "$ref": _reference,
    "if": _condition,
    **for_dependencies(_dependencies),
    **{
        name: _bound(name)
        for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
    },
    "minLength": _count("minLength", lambda high: Text(high=high), lambda low: Text(low=low)),
    "maxLength": _count("maxLength", lambda high: Text(high=high), lambda low: Text(low=low)),
    "minItems": _count("minItems", lambda high: Array(high=high), lambda low: Array(low=low)),
    "maxItems": _count("maxItems", lambda high: Array(high=high), lambda low: Array(low=low)),
    "minProperties": _count(
        "minProperties", lambda high: Object(high=high), lambda low: Object(low=low)
    ),
    "maxProperties": _count(
        "maxProperties", lambda high: Object(high=high), lambda low: Object(low=low)
    ),
}
IN_ANOTHER = frozenset({"then", "else", "minContains", "maxContains"})
