"""Calls of an IO processor: an exception fails the one request and names the plugin. Front end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from tenonry.errors import (
    EngineGenerateError,
    PluginFault,
    QueueFullError,
    RequestError,
    is_interrupt,
)
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.outputs import RequestOutput
from tenonry.plugin.checks import where
from tenonry.plugin.discovery import distribution_of_module

place_of = lru_cache(where)  # it parses the module
PostProcess = Callable[[RequestOutput], RequestOutput]


@contextlib.contextmanager
def io_call(io: IOProcessor, request_id: str, call: str) -> Iterator[None]:
    """Context of one call of `io`: request errors and a full queue pass unchanged, others become `io_fault`."""
    try:
        yield
    except (RequestError, QueueFullError):
        raise
    except BaseException as error:  # noqa: BLE001 - raised again, with the plugin's name
        raise io_fault(io, request_id, call, error)  # noqa: B904 - it has a cause


def io_fault(
    io: IOProcessor | None, request_id: str, call: str, cause: BaseException
) -> EngineGenerateError:
    """Return the error of the request; its `__cause__` is the PluginFault. Re-raises Ctrl-C."""
    if is_interrupt(cause):
        raise cause
    fault = PluginFault(
        f"{type(io).__qualname__} at {place_of(type(io))}",  # type: ignore[arg-type]
        *distribution_of_module(type(io).__module__),
        call,
        cause,
    )
    error = EngineGenerateError(str(fault), request_id=request_id)
    error.__cause__ = fault
    return error


def expect(result: Any, kind: type) -> Any:
    """Return the result of a call. Raises TypeError unless it is of this type."""
    if isinstance(result, kind):
        return result
    raise TypeError(f"the result is {result!r:.99}; it must be of type {kind.__name__}")


def post_processor(io: IOProcessor | None) -> PostProcess | None:
    """Return the function applied to every output before delivery; None if it would have no effect."""
    if not io or type(io).post_process is IOProcessor.post_process:
        return None

    def post_process(output: RequestOutput) -> RequestOutput:
        with io_call(io, output.request_id, "post_process"):
            return expect(io.post_process(output), RequestOutput)  # type: ignore[no-any-return]

    return post_process
