"""Words for what an IO processor did wrong: it fails the one request, and is named. Front end."""

from __future__ import annotations

from typing import Any

from tenonry.errors import EngineGenerateError, PluginFault, RequestError
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.plugin.discovery import distribution_of_module


def ask_io_processor(
    io: IOProcessor, request_id: str, method: str, *args: Any, **options: Any
) -> Any:
    """Call a method for one request. Raises RequestError as it comes, and EngineGenerateError for anything else."""
    try:
        return getattr(io, method)(*args, **options)
    except RequestError:
        raise
    except Exception as error:  # noqa: BLE001 - raised again, in words
        fault = io_fault(io, request_id, method, error)
        raise fault from fault.__cause__


def io_fault(
    io: IOProcessor | None, request_id: str, call: str, cause: Exception
) -> EngineGenerateError:
    """The error of the request; its `__cause__` is the PluginFault."""
    plugin = f"{type(io).__module__}:{type(io).__qualname__}"
    fault = PluginFault(plugin, *distribution_of_module(type(io).__module__), call, cause)
    error = EngineGenerateError(f"request {request_id} failed: {fault}")
    error.__cause__ = fault
    return error
