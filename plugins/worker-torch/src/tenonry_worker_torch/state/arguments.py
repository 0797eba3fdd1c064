"""Arguments of a layer, split by tokens, and its outputs, joined again. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenonry_worker_torch.state.plan import Places


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield all tensors of nested tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors_in(item)


def changed(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same nest with every tensor replaced."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, dict):
        return {name: changed(item, change) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(changed(item, change) for item in value)
    return value


def one_token_each(value: torch.Tensor, tokens: Places) -> torch.Tensor:
    """[1, T, …] → [R, 1, …]: R tokens as a batch of R."""
    if isinstance(tokens, slice):
        return value[:, tokens].transpose(0, 1)
    return value[0].index_select(0, tokens)[:, None]


def stacked(value: torch.Tensor, places: Places, length: int) -> torch.Tensor:
    """[1, T, …] → [B, length, …]: the tokens at `places`, B · length of them, as a batch of B."""
    if isinstance(places, slice):
        chosen = value[0, places]
    else:
        chosen = value[0].index_select(0, places)
    return chosen.unflatten(0, (-1, length))


class Assembled:
    """Joins a layer's outputs for parts of a batch of T tokens, [1, L, …] each, to its output for all, [1, T, …]."""

    __slots__ = ("num_tokens", "parts")

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        self.parts: list[tuple[Places, Any]] = []

    def add(self, tokens: Places, made: Any) -> None:
        """`made`: [1, L, …], or a tuple of such, for the L tokens at `tokens`."""
        self.parts.append((tokens, made))

    def whole(self) -> Any:
        first = self.parts[0][1]
        if not isinstance(first, tuple):
            return self._joined([(tokens, made) for tokens, made in self.parts])
        return tuple(
            self._joined([(tokens, made[place]) for tokens, made in self.parts])
            for place in range(len(first))
        )

    def _joined(self, parts: list[tuple[Places, Any]]) -> Any:
        tokens, first = parts[0]
        if not isinstance(first, torch.Tensor):
            return first
        if isinstance(tokens, slice) and first.shape[1] == self.num_tokens:
            return first
        out = first.new_empty((1, self.num_tokens, *first.shape[2:]))
        for places, made in parts:
            if isinstance(places, slice):
                out[:, places] = made
            else:
                out[0].index_copy_(0, places, made[0])
        return out
