"""Parameter that takes the cache object of transformers: its name differs between versions. Worker process."""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

# `cache` from transformers 5.24 on; it accepts the others with a warning until 5.40, but not in signatures.
CACHE_ARGUMENTS = ("past_key_values", "cache_params", "cache")


def cache_arguments(function: Callable[..., Any]) -> list[str]:
    """Return the parameters of a function with such a name."""
    parameters = inspect.signature(function).parameters
    return [name for name in CACHE_ARGUMENTS if name in parameters]


def cache_argument(function: Callable[..., Any]) -> str:
    """Return the name for the cache in a call; that of older versions if the signature has none."""
    return next(iter(cache_arguments(function)), CACHE_ARGUMENTS[0])


@lru_cache(maxsize=64)
def cache_argument_of(kind: type[nn.Module]) -> str:
    """Return the name for the cache in calls of a class of modules. Kept, because every step calls."""
    return cache_argument(kind.forward)
