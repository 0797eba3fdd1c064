"""Placeholder for `torch.fx.experimental.symbolic_shapes` until a size is a symbol. Worker process.

Operations without storage, and the modules of distributed tensors, query it about sizes. For numbers there is nothing
to compute; importing sympy, which computes with symbols, takes a fourth of torch's import time.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from tenonry_torch_base.deferred_module import DeferredModule

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "torch.fx.experimental.symbolic_shapes"
ERROR = "GuardOnDataDependentSymNode"  # a RuntimeError, caught by modules


class ShapesLoader(SourceFileLoader):
    """Executes nothing yet."""

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["_deferred"] = _State(module, self.path)
        module.__class__ = _Deferred


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{NAME}' has no attribute '{name}'")
        state: _State = self.__dict__["_deferred"]
        return state.attribute(name, sys._getframe(1))  # noqa: SLF001 - who binds the name


class _Given(NamedTuple):
    """Placeholder bound to a name in the module of `namespace`."""

    namespace: dict[str, Any]
    name: str
    stand_in: Any


class _State(DeferredModule):
    """Placeholders by module."""

    def __init__(self, module: ModuleType, path: str) -> None:
        super().__init__(module, path)
        self._given: list[_Given] = []

    def attribute(self, name: str, frame: Any) -> Any:
        """Placeholder for a function, and for the error that a module binds; the real object for other names."""
        if not self.stands_in:
            return self.real(name)
        binds = frame.f_locals is frame.f_globals  # a function would keep the placeholder
        if _defines(self.path, name):
            stand_in = self._function(name)
        elif name == ERROR and binds:
            stand_in = type(name, (RuntimeError,), {"__module__": NAME})
        else:
            return self.real(name)
        if binds:
            self._given.append(_Given(frame.f_globals, name, stand_in))
        return stand_in

    def put_right(self) -> None:
        for namespace, name, stand_in in self._given:
            if namespace.get(name) is stand_in:
                namespace[name] = getattr(self.module, name)
        self._given.clear()

    def _function(self, name: str) -> Callable[..., Any]:
        answer = ANSWERS.get(name)

        def call(*arguments: Any, **named: Any) -> Any:
            if answer is not None and not named:
                found = answer(*arguments)
                if found is not None:
                    return found
            return self.real(name)(*arguments, **named)

        call.__name__ = call.__qualname__ = name
        return call


@cache
def _source(path: str) -> str:
    return Path(path).read_text("utf-8")


def _defines(path: str, name: str) -> bool:
    """Return True if the module's source defines such a function."""
    return f"\ndef {name}(" in _source(path)


def _as_it_is(*values: Any) -> Any:
    return values[0] if len(values) == 1 and type(values[0]) is bool else None


def _are_equal(*values: Any) -> bool | None:
    """Numbers, or lists of them."""
    if len(values) != 2:
        return None
    left, right = values
    if type(left) is int and type(right) is int:
        return left == right
    if isinstance(left, (tuple, list)) and isinstance(right, (tuple, list)):
        if all(type(each) is int for each in (*left, *right)):
            return tuple(left) == tuple(right)
    return None


def _is_nested(*values: Any) -> bool | None:
    return False if len(values) == 1 and type(values[0]) in (int, float) else None


def _any(*values: Any) -> bool | None:
    return any(values) if values and all(type(value) is bool for value in values) else None


def _all(*values: Any) -> bool | None:
    return all(values) if values and all(type(value) is bool for value in values) else None


# Function → result without symbols; None delegates to the real one.
ANSWERS: dict[str, Callable[..., bool | None]] = {
    "expect_true": _as_it_is,
    "guard_bool": _as_it_is,
    "guard_or_false": _as_it_is,
    "guard_or_true": _as_it_is,
    "statically_known_true": _as_it_is,
    "is_nested_int": _is_nested,
    "sym_and": _all,
    "sym_eq": _are_equal,
    "sym_or": _any,
}
