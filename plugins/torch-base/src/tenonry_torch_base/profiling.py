"""Named scopes for a profiler: torch's, NVTX's, or none. Worker process; imports neither unless configured."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ParamSpec, TypeVar

from tenonry.errors import ConfigError

TORCH_VARIABLE = "TENONRY_CUSTOM_SCOPES_FOR_PROFILING"
NVTX_VARIABLE = "TENONRY_NVTX_SCOPES_FOR_PROFILING"
_OFF = {"", "0", "false", "no", "off"}
P = ParamSpec("P")
R = TypeVar("R")


def record_function_or_nullcontext(name: str) -> AbstractContextManager[Any]:
    """A scope called `name`; which kind is decided on the first call. Raises ConfigError if its library is missing."""
    return kind_of_scope()(name)


def scoped(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Each call of the decorated function is a scope called `name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with record_function_or_nullcontext(name):
                return function(*args, **kwargs)

        return call

    return decorate


@functools.cache
def kind_of_scope() -> Callable[[str], AbstractContextManager[Any]]:
    """The first variable that is set wins."""
    for variable, module, function in (
        (TORCH_VARIABLE, "torch.autograd.profiler", "record_function"),
        (NVTX_VARIABLE, "nvtx", "annotate"),
    ):
        if os.environ.get(variable, "").lower() not in _OFF:
            try:
                found: Callable[[str], AbstractContextManager[Any]] = getattr(
                    importlib.import_module(module), function
                )
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"{variable} is set, but its library is missing: pip install {error.name}"
                ) from error
            return found
    return contextlib.nullcontext
