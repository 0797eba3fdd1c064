"""Finds a class written for vLLM: by entry-point name or by `module:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tenonry.errors import ConfigError
from tenonry_vllm_shim.modules import stand_ins


def load_class(name: str, group: str) -> type[Any]:
    """Return the class that `name` stands for: an entry point of `group`, "module:Class" or "path.py:Class".

    An entry point may be a function that returns the class or its dotted name, as IO processors of vLLM register
    themselves. Raises ConfigError if it is not found, cannot be imported or is no class.
    """
    with stand_ins():
        try:
            found = _find(name, group)
        except ConfigError:
            raise
        except Exception as error:
            raise ConfigError(
                f"plugin={name!r} cannot be imported: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, type):
        raise ConfigError(f"plugin={name!r} is a {type(found).__name__}; it must be a class")
    return found


def _find(name: str, group: str) -> Any:
    if ":" in name:
        module, _, attribute = name.rpartition(":")
        load = _load_file if module.endswith(".py") else importlib.import_module
        return getattr(load(module), attribute)
    installed = entry_points(group=group)
    if name not in installed.names:
        known = ", ".join(sorted(installed.names)) or "none is installed"
        raise ConfigError(
            f"plugin={name!r} is no entry point of the group {group} ({known}); "
            "name another, module:Class or path.py:Class"
        )
    found = installed[name].load()
    if inspect.isfunction(found):
        found = found()
    if isinstance(found, str):
        module, _, attribute = found.replace(":", ".").rpartition(".")
        return getattr(importlib.import_module(module), attribute)
    return found


def _load_file(path: str) -> ModuleType:
    name = f"tenonry_vllm_shim_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"plugin={path!r} is no Python file; name module:Class or path.py:Class")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
