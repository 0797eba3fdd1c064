"""Placeholder for `torch._dynamo` until one of its attributes is used. Worker process.

transformers imports it to mark functions for a compiler that serving does not run: 200 modules for three marks and one
context manager; a process group of torch clears its caches. The marks are stored and passed to the real package once it
is loaded; any other use loads it immediately, into the very same module object.
"""

from __future__ import annotations

import functools
import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from tenonry_torch_base.deferred_module import DeferredModule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "torch._dynamo"
MARKS = ("allow_in_graph", "assume_constant_result")
WRAPPED = f"{NAME}._trace_wrapped_higher_order_op"
USES = ("__path__", "__all__")  # read by the import of a submodule, and by a star import


class DynamoLoader(SourceFileLoader):
    """Executes nothing yet."""

    def exec_module(self, module: ModuleType) -> None:
        del module.__path__  # so that the import of a submodule is noticed
        state = _State(module, self.path)
        module.__dict__["_deferred"] = state
        module.__class__ = _Deferred
        if WRAPPED not in sys.modules:
            sys.modules[WRAPPED] = state.wrapped


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in USES:
            raise AttributeError(f"module '{NAME}' has no attribute '{name}'")
        state: _State = self.__dict__["_deferred"]
        found = state.marker(name)
        if found is None:
            found = state.real(name)
            if name == "__path__" and _MET not in sys.meta_path:
                sys.meta_path.insert(0, _MET)
        return found


class _Met(MetaPathFinder):
    """The import of a submodule requests `__path__`, which executes the package, which may import that submodule: it is
    then found here, so that it is not executed twice.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{NAME}.") or fullname not in sys.modules:
            return None
        return ModuleSpec(fullname, _MetLoader(sys.modules[fullname]))


class _MetLoader(Loader):
    """Returns a loaded module unchanged."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


_MET = _Met()


class _State(DeferredModule):
    """The marks so far."""

    def __init__(self, module: ModuleType, path: str) -> None:
        super().__init__(module, path)
        self._marked: list[tuple[str, Any]] = []
        self.wrapped = ModuleType(WRAPPED)
        self.wrapped.__dict__["TransformGetItemToIndex"] = _transform

    def marker(self, name: str) -> Any:
        """Substitute for a function that marks others, or for `trace_rules`; None for other names and once executed."""
        if not self.stands_in:
            return None
        if name == "trace_rules":
            return _TraceRules(self)
        if name == "disable":
            return self._disable
        return functools.partial(self._mark, name) if name in MARKS else None

    def _mark(self, name: str, function: Any) -> Any:
        self._marked.append((name, function))
        return function

    def _disable(self, function: Any = None, *words: Any, **options: Any) -> Any:
        """Return the function: before the package is executed nothing is compiled, so there is nothing to disable."""
        if function is None:
            return lambda decorated: self._disable(decorated, *words, **options)
        if not isinstance(function, FunctionType):
            return self.real("disable")(function, *words, **options)
        disabled: Callable[..., Any] | None = None

        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal disabled
            if not self.is_executed:
                return function(*arguments, **named)
            if disabled is None:
                disabled = self.real("disable")(function, *words, **options)
            return disabled(*arguments, **named)

        return call

    def prepare(self) -> None:
        if sys.modules.get(WRAPPED) is self.wrapped:
            del sys.modules[WRAPPED]
        self.module.__path__ = [self.path.rpartition("/")[0]]

    def put_right(self) -> None:
        for name, function in self._marked:
            getattr(self.module, name)(function)


class _TraceRules:
    """The module `trace_rules` of a package that is not executed. `init_process_group` clears its caches."""

    def __init__(self, state: _State) -> None:
        self._state = state

    def clear_lru_cache(self) -> None:
        """Do nothing: there is no cache before the package is executed."""
        if not self._state.stands_in:
            self._state.real("trace_rules").clear_lru_cache()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state.real("trace_rules"), name)


def _transform(*arguments: Any, **named: Any) -> Any:
    """The context manager `TransformGetItemToIndex` of the real module, which its use imports."""
    importlib.import_module(NAME).__path__  # noqa: B018 - executes the package
    return importlib.import_module(WRAPPED).TransformGetItemToIndex(*arguments, **named)
