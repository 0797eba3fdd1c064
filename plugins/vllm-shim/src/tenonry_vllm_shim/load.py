"""Finds a class written for vLLM, through the resolver of all points."""

from __future__ import annotations

import inspect
import pkgutil
from typing import Any

from tenonry.errors import ConfigError
from tenonry.plugin import Point
from tenonry.plugin.manager import resolve_point
from tenonry_vllm_shim.modules import stand_ins

STAT_LOGGERS = Point("vllm.stat_logger_plugins", kind="stat logger of vLLM")
IO_PROCESSORS = Point("vllm.io_processor_plugins", kind="IO processor of vLLM")


def load_class(name: str, point: Point) -> type[Any]:
    """Return the class that `name` stands for: an entry point of the group, "module:Class" or "path.py:Class".

    A function returns the class or its dotted name, as IO processors of vLLM register themselves. Raises PluginError if
    it is not found or cannot be imported, ConfigError if it is no class.
    """
    with stand_ins():
        found, _ = resolve_point(point, name)
        if inspect.isfunction(found):
            found = found()
        if isinstance(found, str):
            found = pkgutil.resolve_name(found)
    if not isinstance(found, type):
        raise ConfigError(f"plugin={name!r} is a {type(found).__name__}; it must be a class")
    return found
