"""An extension point as a value: its owner declares it and passes it to the resolver. Any process."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Point:
    """Extension point: the entry-point group of a kind, its base class, and the distributions of known plugins.

        SAMPLERS = Point("acme.samplers", "acme.sampling:Sampler", {"fast": "acme-fast-sampler"})

    `group`: the entry-point group. `base`: the class that a plugin must derive from, or "module:Class" if its module is
    heavy; None for targets other than classes, checked by the owner. `provider`: name → distribution, for the pip
    command in "not found" errors. `kind`: singular name of a plugin; by default the group's last part without its
    plural ending. `tier`: "alpha" (may change with any release), "beta" or "stable". Points named in the group
    `tenonry.points` are listed by `tenonry plugins list`.
    """

    group: str
    base: type[Any] | str | None = None
    provider: Mapping[str, str] = field(default_factory=dict, hash=False)
    kind: str = ""
    tier: str = "beta"

    def __post_init__(self) -> None:
        plural = self.group.rpartition(".")[2]
        singular = plural[:-3] + "y" if plural.endswith("ies") else plural.removesuffix("s")
        object.__setattr__(self, "kind", self.kind or singular)

    def load_base(self) -> type[Any] | None:
        """Return the required base class, imported now if `base` is its name."""
        return pkgutil.resolve_name(self.base) if isinstance(self.base, str) else self.base
