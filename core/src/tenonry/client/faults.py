"""Words for what an IO processor did wrong: it fails the one request, and is named. Front end."""

from __future__ import annotations

from tenonry.errors import EngineGenerateError, PluginFault
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.plugin_discovery import distribution_of_module


def io_fault(io: IOProcessor | None, request_id: str, call: str, cause: Exception) -> EngineGenerateError:
    """The error of the request; its `__cause__` is the PluginFault."""
    plugin = f"{type(io).__module__}:{type(io).__qualname__}"
    fault = PluginFault(plugin, *distribution_of_module(type(io).__module__), call, cause)
    error = EngineGenerateError(f"request {request_id} failed: {fault}")
    error.__cause__ = fault
    return error
