"""`oneOf`: a value satisfies one of the schemas, and none of the others. Pure."""

from __future__ import annotations

from typing import Any

from tenonry_grammars.schema import pointer
from tenonry_grammars.schemas.leaves import (
    Conditions,
    Leaf,
    Object,
    Sub,
    TooManyForms,
    Unserved,
    both,
)
from tenonry_grammars.schemas.protocol import SchemaReader
from tenonry_grammars.schemas.resources import Place


def exclusive(reader: SchemaReader, place: Place, schemas: list[Any]) -> list[Leaf]:
    """Each schema with the opposites of those that a value of it may satisfy, too."""
    options = [
        reader.below(place, ("oneOf", str(index)), schema) for index, schema in enumerate(schemas)
    ]
    found: list[Leaf] = []
    for index, conditions in enumerate(options):
        shared = [
            other
            for other, others in enumerate(options)
            if other != index
            and not (conditions and others and reader.is_empty(both(conditions, others)))
        ]
        leaf = _alone(reader, place, options, index, shared) if shared else Sub(conditions)
        found += [leaf] if leaf is not None else []
    return found


def _alone(
    reader: SchemaReader, place: Place, options: list[Conditions], index: int, shared: list[int]
) -> Leaf | None:
    """Form of the values that satisfy schema `index` and none of the `shared` ones; None if there are none."""
    whole = options[index]
    for other in shared:
        schema = place.schema["oneOf"][other]
        whole = both(whole, reader.below(place, ("oneOf", str(other)), schema, is_opposite=True))
    try:
        leaves = [
            leaf for leaf in reader.expanded(reader.leaves(whole)) if not reader.has_no_value(leaf)
        ]
    except TooManyForms:
        whole = _told_apart(reader, place, options, index, shared)
        leaves = reader.leaves(whole)
    if not leaves:
        return None
    if all(isinstance(leaf, Unserved) and leaf.is_opposite for leaf in leaves):
        text = (
            f"a value may satisfy both schema {index} and schema {shared[0]} of 'oneOf', and no grammar tells them "
            "apart: give them different types, or a required property with a different 'const'; or use 'anyOf'"
        )
        kinds = frozenset(
            kind for leaf in leaves if isinstance(leaf, Unserved) for kind in leaf.kinds
        )
        return Unserved(kinds, place.location("oneOf"), text)
    return Sub(whole)


def _told_apart(
    reader: SchemaReader, place: Place, options: list[Conditions], index: int, shared: list[int]
) -> Conditions:
    """The schema with a property whose values none of the others has. Raises TooManyForms where there is none."""
    mine = _properties(reader, options[index])
    others = [_properties(reader, options[other]) for other in shared]
    for name, conditions in mine.items():
        if all(
            name in other and reader.is_empty(both(conditions, other[name])) for other in others
        ):
            return both(
                options[index], reader.below(place, ("oneOf", str(index)), {"required": [name]})
            )
    text = (
        f"the schemas of 'oneOf' can differ in too many ways (see schema {index}): give each a required property with "
        "a 'const' of its own, or use 'anyOf'"
    )
    raise TooManyForms(text, pointer(place.path), "oneOf")


def _properties(reader: SchemaReader, conditions: Conditions) -> dict[str, Conditions]:
    """Return the properties of a schema that is an object of one form."""
    leaves = reader.expanded(reader.leaves(conditions))
    objects = [leaf for leaf in leaves if isinstance(leaf, Object)]
    if len(objects) != 1 or len(leaves) != 1:
        return {}
    return {name: inner for name, inner in objects[0].properties if inner}
