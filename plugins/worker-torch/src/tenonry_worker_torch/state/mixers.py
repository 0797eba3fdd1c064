"""Finds modules that keep state through the cache object of transformers, without weights. Worker process."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.cache_argument import cache_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import nn
    from transformers import PretrainedConfig

STATE_CALLS = frozenset({"update_conv_state", "update_recurrent_state"})
CACHELESS_TYPES = ("moe", "mlp")  # words in `layer_types` for layers that keep nothing


def mixers_of(model: nn.Module) -> dict[str, nn.Module]:
    """Name → module, in the model's order, of the modules whose own code hands state to a cache object."""
    return {name: module for name, module in model.named_modules() if keeps_state(type(module))}


@lru_cache(maxsize=1024)  # a class is examined once, not once per layer
def keeps_state(kind: type) -> bool:
    """Return True if a method of the class calls one of `STATE_CALLS`."""
    return any(
        not STATE_CALLS.isdisjoint(_names_used(method))
        for owner in kind.__mro__
        for method in vars(owner).values()
        if inspect.isfunction(method)
    )


def _names_used(method: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(method), "__code__", None)
    return () if code is None else code.co_names


class CacheArgument:
    """The cache parameter of a module's forward. Raises ValueError when it is ambiguous."""

    __slots__ = ("name", "place")

    def __init__(self, module: nn.Module) -> None:
        parameters = list(inspect.signature(module.forward).parameters)
        found = cache_arguments(module.forward)
        if len(found) != 1:
            raise ValueError("its forward does not say which argument is the cache")
        self.name = found[0]
        self.place = parameters.index(self.name)

    def call(
        self,
        forward: Callable[..., Any],
        arguments: tuple[Any, ...],
        named: dict[str, Any],
        cache: Any,
    ) -> Any:
        """Call `forward` with these arguments, with its cache replaced by `cache`."""
        if self.place >= len(arguments):
            return forward(*arguments, **(named | {self.name: cache}))
        before = arguments[: self.place]
        after = arguments[self.place + 1 :]
        return forward(*before, cache, *after, **named)


def cache_layers(config: PretrainedConfig) -> list[Any]:
    """The layers of the cache that transformers itself would make for a model, without storage."""
    from transformers import DynamicCache

    return list(DynamicCache(config=config).layers)


def state_layers(config: PretrainedConfig) -> set[int]:
    """The numbers of the layers that have state in the cache that transformers would make.

    Some versions add a layer for state, which stays empty, for layers with experts only.
    """
    from transformers.cache_utils import LinearAttentionCacheLayerMixin

    layer_types = getattr(config, "layer_types", None) or ()
    empty = {number for number, kind in enumerate(layer_types) if kind in CACHELESS_TYPES}
    return {
        number
        for number, layer in enumerate(cache_layers(config))
        if isinstance(layer, LinearAttentionCacheLayerMixin) and number not in empty
    }


def has_only_state(config: PretrainedConfig) -> bool:
    """Return True if no layer of the model's cache holds K/V, so that the model has no attention."""
    from transformers.cache_utils import CacheLayerMixin

    layers = cache_layers(config)
    return bool(layers) and not any(isinstance(layer, CacheLayerMixin) for layer in layers)


def state_layer_types() -> Iterator[str]:
    """Values in `layer_types` for layers with state, alone or together with K/V, and for those without a cache."""
    from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, LinearAttentionCacheLayerMixin

    yield from CACHELESS_TYPES
    for name, kind in DYNAMIC_LAYER_TYPE_MAPPING.items():
        if inspect.isclass(kind) and issubclass(kind, LinearAttentionCacheLayerMixin):
            yield name
