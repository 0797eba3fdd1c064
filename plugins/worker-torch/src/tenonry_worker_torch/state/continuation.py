"""Tests whether a layer computes a prompt in pieces as in one. Worker process.

Some families' code accepts several tokens on top of a state, some only one, and would silently drop the state. So each
layer is tried in float32, with its own weights and its inputs of the first run.
"""

from __future__ import annotations

import copy
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch

from tenonry_worker_torch.state.arguments import changed, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tenonry_worker_torch.state.layer_cache import LayerState, StateKey
    from tenonry_worker_torch.state.mixers import CacheArgument

# Tolerance for float32 rounding (relative L2 per token); a dropped state gives errors near 1.
TOLERANCE = 1e-3


MASK = "attention_mask"  # argument of a mixer, [rows, tokens], false for padding


class Continuation(Enum):
    """Capabilities of a stateful layer: any number of tokens, one, or none."""

    IN_PIECES = "in pieces"
    ONE_AT_A_TIME = "one at a time"
    WRONG = "wrong"


class Trial:
    """A copy of a layer in float32 that is called as the layer was, with one prompt of several tokens."""

    def __init__(
        self,
        module: nn.Module,
        state: LayerState,
        argument: CacheArgument,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self.module = copy.deepcopy(module).float()
        del self.module.forward  # the copy runs its class's code
        self.state = state
        self.argument = argument
        self.given = changed((arguments, named), _as_float)
        self.length = int(next(tensors_in(self.given)).shape[1])

    def result(self) -> Continuation:
        whole = self._run([self.length])
        first = self.length - self.length // 2
        second = self.length - first
        if _is_close(self._run([first, second]), whole):
            return Continuation.IN_PIECES
        if _is_close(self._run([first, *[1] * second]), whole):
            return Continuation.ONE_AT_A_TIME
        return Continuation.WRONG

    def _run(self, pieces: list[int]) -> torch.Tensor:
        """The outputs [length, …] of one sequence in pieces of these lengths, through one cache."""
        cache = self.state.empty()
        made = []
        begin = 0
        for size in pieces:
            tokens = slice(begin, begin + size)
            arguments, named = changed(self.given, lambda each, at=tokens: each[:, at])
            out = self.argument.call(self.module.forward, arguments, named, cache)
            made.append(next(tensors_in(out))[0])
            begin += size
        return torch.cat(made)

    def fills_up(self) -> bool:
        """Return True if a new row that is padded on the left, and masked there, is computed as it is alone: then rows
        of several lengths can share a call. Values in the padding must not matter.
        """
        shorter = self.length - self.length // 2
        if shorter == self.length:
            return False
        alone, wanted = self._begun(lambda each: each[:, :shorter])
        rest = self.length - shorter
        mask = torch.ones(2, self.length, dtype=torch.bool, device=alone.device)
        mask[1, :rest] = False
        both, states = self._begun(lambda each: torch.cat([each, each.roll(rest, 1)]), {MASK: mask})
        right = _is_close(both[1, rest:], alone[0])
        for key, state in states.items():
            right = right and _is_close(state[1].flatten(), wanted[key][0].flatten())
        return right

    def _begun(
        self, change: Callable[[torch.Tensor], torch.Tensor], more: dict[str, Any] | None = None
    ) -> tuple[torch.Tensor, dict[StateKey, torch.Tensor]]:
        """Outputs [rows, tokens, …] and states of the changed inputs, without a state before."""
        cache = self.state.empty()
        arguments, named = changed(self.given, change)
        made = self.argument.call(self.module.forward, arguments, named | (more or {}), cache)
        return next(tensors_in(made)), dict(self.state.taken_from(cache))


def _as_float(value: torch.Tensor) -> torch.Tensor:
    return value.float() if value.is_floating_point() else value


def _is_close(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    difference = (got - wanted).norm(dim=-1)
    scale = wanted.norm(dim=-1).clamp_min(1e-6)
    return bool((difference / scale <= TOLERANCE).all())
