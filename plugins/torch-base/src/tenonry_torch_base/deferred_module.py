"""A module that is executed with the first use that needs it, in the very same module object. Worker process."""

from __future__ import annotations

import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any


class DeferredModule:
    """The execution of one module, which happens once.

    A subclass replaces the class of the module object, so that missing attributes are looked up here.
    """

    def __init__(self, module: ModuleType, path: str) -> None:
        self.module = module
        self.path = path
        self.is_executed = False
        self._is_executing = False
        self._lock = threading.RLock()

    @property
    def stands_in(self) -> bool:
        """True while nothing of the module is loaded."""
        return not self.is_executed and not self._is_executing

    def real(self, name: str) -> Any:
        """Return an attribute of the module; executes it first. Its own imports see it partially initialised, as in any
        import; other threads wait.

        Raises AttributeError if the module has no such attribute, and any exception of its execution.
        """
        with self._lock:
            if self.stands_in:
                self._execute()
        if name in self.module.__dict__:
            return self.module.__dict__[name]
        raise AttributeError(f"module '{self.module.__name__}' has no attribute '{name}'")

    def prepare(self) -> None:
        """Establish the preconditions of executing the module."""

    def put_right(self) -> None:
        """Replace placeholders passed to other modules by the attributes of the loaded module."""

    def _execute(self) -> None:
        module = self.module
        self._is_executing = True
        loader = SourceFileLoader(module.__name__, self.path)
        module.__loader__ = loader
        if module.__spec__ is not None:
            module.__spec__.loader = loader
        self.prepare()
        try:
            loader.exec_module(module)
        finally:
            self._is_executing = False
        self.is_executed = True
        module.__class__ = ModuleType
        self.put_right()
