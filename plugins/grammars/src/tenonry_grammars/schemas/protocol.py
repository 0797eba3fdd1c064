"""Interface of the whole schema's reader, as used by the readers of keywords. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tenonry_grammars.nodes import Node
from tenonry_grammars.schemas.leaves import Conditions, Leaf
from tenonry_grammars.schemas.resources import Place, Resources

# In draft 4, and what later drafts made of it.
DEPENDENCIES = ("dependencies", "dependentRequired", "dependentSchemas")


class SchemaReader(Protocol):
    """See `tenonry_grammars.schemas.reading.Reader`."""

    resources: Resources

    def number(self, place: Place, *, is_opposite: bool = False) -> int: ...

    def below(
        self, place: Place, steps: Sequence[str], schema: Any, *, is_opposite: bool = False
    ) -> Conditions: ...

    def leaves(self, conditions: Conditions) -> list[Leaf]: ...

    def product(self, ones: list[Leaf], others: list[Leaf]) -> list[Leaf]: ...

    def expanded(self, leaves: list[Leaf]) -> list[Leaf]: ...

    def is_empty(self, conditions: Conditions) -> bool: ...

    def has_no_value(self, leaf: Leaf) -> bool: ...

    def pattern(self, place: Place, text: Any, *, widest: bool = False) -> Node: ...

    def conditions_of_pattern(self, place: Place, text: Any) -> tuple[Node, ...]: ...

    def names_of_pattern(self, node: Node) -> list[str] | None: ...


KeywordReader = Callable[[SchemaReader, Place, Any], list[Leaf]]


def for_dependencies(read: Callable[..., list[Leaf]]) -> dict[str, KeywordReader]:
    """Each of `DEPENDENCIES` with `read`, which has the keyword as its last argument."""
    return {keyword: partial(read, keyword=keyword) for keyword in DEPENDENCIES}
