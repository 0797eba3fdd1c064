"""Cache object of one mixer: a layer of transformers' own class, empty or with states of some rows. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from transformers import Cache

CONVOLUTION = "conv"
RECURRENT = "recurrent"


class StateKey(NamedTuple):
    """One state of a layer: `kind` is the convolution's window or the recurrent matrix, `index` its number there."""

    kind: str
    index: int


class StateShape(NamedTuple):
    """Shape and type of one row's state."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


class LayerState:
    """Cache layer with the state of a mixer, and the keys of its state."""

    __slots__ = ("index", "keys", "number_of_states", "shapes")

    def __init__(self, layers: Sequence[Any]) -> None:
        """`layers`: of a cache that a prompt went through. Raises ValueError when not exactly one has state."""
        used = [
            (index, found) for index, layer in enumerate(layers) if (found := _states_of(layer))
        ]
        if len(used) != 1:
            raise ValueError(f"it keeps state in {len(used)} layers of the cache, and not in one")
        self.index, states = used[0]
        self.number_of_states = int(layers[self.index].number_of_states)
        self.keys = tuple(states)
        self.shapes = {
            key: StateShape(tuple(state.shape[1:]), state.dtype) for key, state in states.items()
        }

    def empty(self) -> Cache:
        """A cache without state, as for a new prompt."""
        from transformers import Cache
        from transformers.cache_utils import LinearAttentionLayer

        layer = LinearAttentionLayer(number_of_states=self.number_of_states)
        return Cache(layers=[None] * self.index + [layer])

    def holding(self, states: Mapping[StateKey, torch.Tensor]) -> Cache:
        """A cache with the state of R rows, each [R, …]; the layer writes into these tensors."""
        cache = self.empty()
        layer = cache.layers[self.index]
        for (kind, index), state in states.items():
            if kind == CONVOLUTION:
                layer.conv_states[index] = state
                layer.is_conv_states_initialized[index] = True
                width = state.shape[-1]
                layer.conv_kernel_size[index] = width
            else:
                layer.recurrent_states[index] = state
                layer.is_recurrent_states_initialized[index] = True
            layer.has_previous_state[index] = True
            layer.device = state.device
            layer.dtype = state.dtype
        return cache

    def taken_from(self, cache: Cache) -> Iterator[tuple[StateKey, torch.Tensor]]:
        """The states that a mixer left in a cache, [R, …] each."""
        layer = cache.layers[self.index]
        for key in self.keys:
            states = layer.conv_states if key.kind == CONVOLUTION else layer.recurrent_states
            yield key, states[key.index]


def _states_of(layer: Any) -> dict[StateKey, torch.Tensor]:
    found = {}
    for kind in (CONVOLUTION, RECURRENT):
        states = getattr(layer, f"{kind}_states", None) or {}
        for index, state in states.items():
            if state is not None:
                found[StateKey(kind, index)] = state
    return found
