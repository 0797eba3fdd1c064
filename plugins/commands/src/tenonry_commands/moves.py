"""Table of moves: changes of an interface that `tenonry plugins update` makes in a package, and that a start warns of.
Any process.

A change of an interface that raises its version adds one entry. Version 1 is the first of every interface, so the table
is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Moves:
    """Moves of one kind, from interface version `version` − 1 to `version`.

    `names`: "module:Name" → its new place, or "module" → its new name. `members`: methods and attributes of plugin
    classes, old name → new name.
    """

    kind: str
    version: int
    names: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, str] = field(default_factory=dict)


MOVES: tuple[Moves, ...] = ()
