"""The forms of values as a grammar library takes them: what is alike for all, and what a backend adds. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from tenonry_grammars.schemas.leaves import (
    Array,
    Conditions,
    Flag,
    Leaf,
    Null,
    Number,
    Object,
    Text,
)

Schema = dict[str, Any]
Part = Callable[[Conditions], Schema | bool]  # schema of a place within a form


class FormWriter(ABC):
    """Writes each form as a schema; False for one that nothing satisfies.

    A method raises GrammarError for what the library would not enforce.
    """

    @abstractmethod
    def is_small(self, leaf: Leaf) -> bool:
        """Return True for a form that is written wherever it stands, instead of a reference."""

    @abstractmethod
    def number(self, leaf: Number) -> Schema:
        """The schema of numbers."""

    @abstractmethod
    def text(self, leaf: Text) -> Schema | bool:
        """The schema of texts."""

    @abstractmethod
    def array(self, leaf: Array, part: Part) -> Schema:
        """The schema of arrays."""

    @abstractmethod
    def object(self, leaf: Object, part: Part) -> Schema:
        """The schema of objects."""

    def write(self, leaf: Leaf, part: Part) -> Schema | bool:
        """The schema of any form but `Anything` and `Sub`."""
        if isinstance(leaf, Null):
            return {"type": "null"}
        if isinstance(leaf, Flag):
            return {"type": "boolean"} if len(leaf.values) > 1 else {"enum": list(leaf.values)}
        if isinstance(leaf, Number):
            return self.number(leaf)
        if isinstance(leaf, Text):
            return self.text(leaf)
        if isinstance(leaf, Array):
            return self.array(leaf, part)
        if isinstance(leaf, Object):
            return self.object(leaf, part)
        raise TypeError(f"{leaf} is no form of a value")


def bounds(leaf: Text | Array | Object, what: str) -> Schema:
    """Keywords for the size of a form, such as `minItems` and `maxItems` for "Items"."""
    found: Schema = {f"min{what}": leaf.low} if leaf.low else {}
    return found if leaf.high is None else {**found, f"max{what}": leaf.high}
