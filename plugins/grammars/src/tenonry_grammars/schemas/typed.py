"""Keywords that restrict values of one type: numbers, texts, arrays and objects. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tenonry_grammars.base import GrammarError
from tenonry_grammars.edges import NoTextError
from tenonry_grammars.nodes import Node
from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.expressions import matches
from tenonry_grammars.schemas.formats import FORMATS, UNSERVED
from tenonry_grammars.schemas.leaves import (
    ANY,
    EVERY,
    Array,
    Conditions,
    Leaf,
    Number,
    Object,
    Text,
    Unserved,
    both,
    number,
)
from tenonry_grammars.schemas.protocol import SchemaReader
from tenonry_grammars.schemas.resources import NEWEST, Place
from tenonry_grammars.schemas.values import count_of, names_of, number_of, schemas_of, types_of

NUMBERS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
TEXTS = frozenset({"minLength", "maxLength", "pattern", "format"})
ARRAYS = frozenset(
    {"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"}
)
OBJECTS = frozenset({
    "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
    "propertyNames",
})  # fmt: skip
STRING = frozenset({"string"})
TYPED = NUMBERS | TEXTS | ARRAYS | OBJECTS | {"type"}


def typed_leaves(reader: SchemaReader, place: Place) -> list[Leaf]:
    """The forms of values of each type that a schema allows."""
    schema: Mapping[str, Any] = place.schema
    types = (
        types_of(place.path, schema["type"]) if "type" in schema else [leaf.kind for leaf in EVERY]
    )
    found: list[Leaf] = []
    plain = {leaf.kind: leaf for leaf in EVERY}
    for name in types:
        if name in {"number", "integer"}:
            if name == "integer" and "number" in types:
                continue
            leaf = _number(place, schema, is_whole=name == "integer")
            found += [leaf] if leaf else []
        elif name == "string":
            found += _text(reader, place, schema)
        elif name == "array":
            found += _array(reader, place, schema)
        elif name == "object":
            found += _object(reader, place, schema)
        else:
            found.append(plain[name])
    return found


def _number(place: Place, schema: Mapping[str, Any], *, is_whole: bool) -> Number | None:
    found = {
        keyword: number_of(place.path, keyword, schema[keyword])
        for keyword in NUMBERS & schema.keys()
        if not isinstance(schema[keyword], bool)
    }
    low, high = found.get("minimum"), found.get("maximum")
    beyond, below = found.get("exclusiveMinimum"), found.get("exclusiveMaximum")
    # In draft 4, these are flags.
    excludes_low = schema.get("exclusiveMinimum") is True
    excludes_high = schema.get("exclusiveMaximum") is True
    if beyond is not None and (low is None or beyond >= low):
        low, excludes_low = beyond, True
    if below is not None and (high is None or below <= high):
        high, excludes_high = below, True
    factor = found.get("multipleOf")
    if factor is not None and factor <= 0:
        raise GrammarError(
            f"'multipleOf' is a number above 0, not {schema['multipleOf']}", pointer(place.path)
        )
    excludes_low &= low is not None
    excludes_high &= high is not None
    return number(Number(is_whole, low, high, excludes_low, excludes_high, factor))


def _text(reader: SchemaReader, place: Place, schema: Mapping[str, Any]) -> list[Leaf]:
    low = count_of(place.path, "minLength", schema.get("minLength", 0))
    high = count_of(place.path, "maxLength", schema["maxLength"]) if "maxLength" in schema else None
    patterns: list[Node] = []
    refused = None
    if "pattern" in schema:
        try:
            patterns += reader.conditions_of_pattern(place, schema["pattern"])
        except GrammarError as error:
            refused = Unserved(STRING, place.location("pattern"), str(error))
    name = schema.get("format")
    if isinstance(name, str) and name in UNSERVED:
        text = f"the format '{name}' is not served; leave it out"
        refused = refused or Unserved(STRING, place.location("format"), text)
    if refused:
        return [refused]
    if isinstance(name, str) and name in FORMATS:
        patterns.append(reader.pattern(place, FORMATS[name]))
    if high is not None and high < low:
        return []
    return [Text(low, high, tuple(dict.fromkeys(patterns)))]


def _array(reader: SchemaReader, place: Place, schema: Mapping[str, Any]) -> list[Leaf]:
    low = count_of(place.path, "minItems", schema.get("minItems", 0))
    high = count_of(place.path, "maxItems", schema["maxItems"]) if "maxItems" in schema else None
    first: list[Conditions] = _items(reader, place, "prefixItems", schema.get("prefixItems", []))
    rest = ANY
    reads_rest = False
    items = schema.get("items", True)
    if isinstance(items, list):
        listed = _items(reader, place, "items", items)
        length = max(len(first), len(listed))
        pairs = [
            (*first, *[ANY] * (length - len(first))),
            (*listed, *[ANY] * (length - len(listed))),
        ]
        first = [both(one, other) for one, other in zip(*pairs, strict=True)]
        if "additionalItems" in schema:
            rest = reader.below(place, ("additionalItems",), schema["additionalItems"])
            reads_rest = True
    elif "items" in schema:
        rest = reader.below(place, ("items",), items)
        reads_rest = True
        if reader.resources.draft != NEWEST:  # there, it holds for all items
            first = [both(one, rest) for one in first]
    unique = place.location("uniqueItems") if schema.get("uniqueItems") is True else None
    if high is not None and high < low:
        return []
    return [Array(tuple(first), rest, low, high, unique, reads_rest)]


def _items(reader: SchemaReader, place: Place, keyword: str, schemas: Any) -> list[Conditions]:
    if not isinstance(schemas, list):
        raise GrammarError(
            f"'{keyword}' is a list of schemas, not {schemas!r:.64}", pointer(place.path)
        )
    return [
        reader.below(place, (keyword, str(index)), inner) for index, inner in enumerate(schemas)
    ]


def _object(reader: SchemaReader, place: Place, schema: Mapping[str, Any]) -> list[Leaf]:
    path = place.path
    low = count_of(path, "minProperties", schema.get("minProperties", 0))
    high = (
        count_of(path, "maxProperties", schema["maxProperties"])
        if "maxProperties" in schema
        else None
    )
    required = tuple(dict.fromkeys(names_of(path, "required", schema.get("required", []))))
    properties = {
        name: reader.below(place, ("properties", name), inner)
        for name, inner in schemas_of(path, "properties", schema.get("properties", {})).items()
    }
    leaf = Object(
        tuple(properties.items()),
        (),
        ANY,
        required,
        low,
        high,
        declared=frozenset(properties),
        sources=tuple(place.location(keyword) for keyword in schema if keyword in OBJECTS),
    )
    if "propertyNames" in schema:
        leaf = replace(leaf, names=reader.below(place, ("propertyNames",), schema["propertyNames"]))
    if "additionalProperties" in schema:
        rest = reader.below(place, ("additionalProperties",), schema["additionalProperties"])
        leaf = replace(leaf, rest=rest, reads_rest=True)
    if high is not None and high < max(low, len(required)):
        return []
    return _with_patterns(
        reader,
        place,
        leaf,
        schemas_of(path, "patternProperties", schema.get("patternProperties", {})),
    )


def _with_patterns(
    reader: SchemaReader, place: Place, leaf: Object, schemas: Mapping[str, Any]
) -> list[Leaf]:
    """Patterns with few names become properties; others hold for the properties that they match, too."""
    properties = dict(leaf.properties)
    found: list[tuple[Node, Conditions, list[str] | None]] = []
    first_of: dict[
        str, str
    ] = {}  # equal schemas have one condition, so that their patterns may overlap
    for text, inner in schemas.items():
        first = first_of.setdefault(json.dumps(inner, sort_keys=True), text)
        conditions = reader.below(place, ("patternProperties", first), schemas[first])
        try:
            node = reader.pattern(place, text)
        except NoTextError:
            continue
        except GrammarError as error:
            location = place.location("patternProperties")
            return [Unserved(frozenset({"object"}), location, str(error))]
        few = reader.names_of_pattern(node)
        found.append((node, conditions, few))
        for name in few or ():
            properties.setdefault(name, ANY)
    patterns: dict[Node, Conditions] = {}
    for node, conditions, few in found:
        if few is None:
            patterns[node] = both(patterns.get(node, ANY), conditions)
        for name, known in properties.items():
            if matches(node, name):
                properties[name] = both(known, conditions)
    declared = leaf.declared | set(properties)
    return [
        replace(
            leaf,
            properties=tuple(properties.items()),
            patterns=tuple(patterns.items()),
            declared=declared,
        )
    ]
