"""A module that is executed with the first use that needs it, in the very same module object. Worker process."""

from __future__ import annotations

import threading
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any


class DeferredModule:
    """The execution of one module, which happens once.

    A subclass makes `module` ask it for what the module does not have, by another class of the module object.
    """

    def __init__(self, module: ModuleType, path: str) -> None:
        self.module = module
        self.path = path
        self.is_executed = False
        self._is_executing = False
        self._lock = threading.RLock()

    @property
    def stands_in(self) -> bool:
        """Whether nothing of the module is there yet."""
        return not self.is_executed and not self._is_executing

    def real(self, name: str) -> Any:
        """An attribute of the module; executes it first. Its own imports meet it half done, as in any import; other
        threads wait.

        Raises AttributeError where the module has none of that name, and what executing it raises.
        """
        with self._lock:
            if self.stands_in:
                self._execute()
        if name in self.module.__dict__:
            return self.module.__dict__[name]
        raise AttributeError(f"module '{self.module.__name__}' has no attribute '{name}'")

    def prepare(self) -> None:
        """What must be so before the module is executed."""

    def put_right(self) -> None:
        """What others were given meanwhile becomes what the module has."""

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
