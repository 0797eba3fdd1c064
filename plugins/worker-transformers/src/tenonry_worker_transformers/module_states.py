"""State that modules of a model keep between calls in plain attributes, outside of any cache object (the state of
RecurrentGemma's layers, for example). Each request has its own. Worker process.

The attributes are detected, not listed: those that a run changes, and that another prompt of the same length leaves
with other values. Tables that grow with the length do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import nn

KEY = "tenonry_module_states"  # key of a request's states among the arguments carried between calls


class Place(NamedTuple):
    """An attribute of a module, by a name of its own in the model; the object that it held before any run, and a copy
    of that, since a module may write into it.
    """

    name: str
    module: nn.Module
    attribute: str
    first: torch.Tensor | None
    before: torch.Tensor | None

    @property
    def value(self) -> Any:
        return getattr(self.module, self.attribute)


class ModuleStates:
    """`places`: none until `look` has found some. Made before the model runs for the first time."""

    __slots__ = ("_untouched", "places")

    def __init__(self, model: nn.Module) -> None:
        self._untouched = list(_attributes(model))
        self.places: list[Place] = []

    def look(self, run: Callable[[torch.Tensor], object], prompts: Sequence[torch.Tensor]) -> bool:
        """Detect state of modules after a first run. `prompts` are two of one length; `run` computes one."""
        changed = [place for place in self._untouched if place.value is not place.first]
        self._untouched = []
        if not changed:
            return False
        found = []
        for prompt in prompts:
            run(prompt)
            found.append([_copy(place.value) for place in changed])
        first, second = found
        self.places = [
            place
            for place, one, other in zip(changed, first, second, strict=True)
            if not _same(one, other)
        ]
        self.put(None)
        return bool(self.places)

    def put(self, states: dict[str, Any] | None) -> None:
        """Set the modules to these states; None: as before any run."""
        for place in self.places:
            value = _copy(place.before) if states is None else states[place.name]
            setattr(place.module, place.attribute, value)

    def taken(self) -> dict[str, Any]:
        """The states that the modules hold now."""
        return {place.name: place.value for place in self.places}


def _attributes(model: nn.Module) -> Iterator[Place]:
    """Attributes that are tensors or may become some; parameters and buffers are no such attributes."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if value is None or isinstance(value, torch.Tensor):
                yield Place(f"{name}.{attribute}", module, attribute, value, _copy(value))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and torch.equal(one, other)
    return one is other
