"""Calls of the IO processor by routes that read prompts: a fault names the plugin and fails one request. Front end,
any thread.
"""

from __future__ import annotations

from collections.abc import Sized
from functools import lru_cache
from typing import Any, cast

from tenonry.errors import PluginFault, QueueFullError, RequestError
from tenonry.interfaces.io_processor import IOProcessor, ProcessedPrompt, Prompt
from tenonry.plugin.checks import where
from tenonry.plugin.discovery import distribution_of_module

place_of = lru_cache(where)  # it parses the module

# Types of results.
RESULTS: dict[str, Any] = {
    "decode": str,
    "encode": list,
    "process_prompt": ProcessedPrompt,
    "render_chat": Sized | Prompt,  # a text, token ids, fields, or a prompt that was read
}


class NamedCalls:
    """Passes calls on to an IO processor. Raises RequestError and QueueFullError as they are, else PluginFault."""

    def __init__(self, io_processor: IOProcessor) -> None:
        self._io_processor = io_processor

    @classmethod
    def of(cls, io_processor: IOProcessor) -> IOProcessor:
        """Return an object with the methods of `io_processor`."""
        return cast("IOProcessor", cls(io_processor))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._io_processor, name)

        def call(*args: Any, **options: Any) -> Any:
            try:
                result = method(*args, **options)
                wanted = RESULTS.get(name, object)
                if not isinstance(result, wanted):
                    text = f"the result is {result!r:.99}; it must be of type"
                    raise TypeError(f"{text} {getattr(wanted, '__name__', wanted)}")
            except (RequestError, QueueFullError):
                raise
            except Exception as error:
                raise self._fault(name, error) from error
            return result

        return call

    def _fault(self, call: str, error: Exception) -> PluginFault:
        cls = type(self._io_processor)
        origin = distribution_of_module(cls.__module__)
        # The client receives the name of the class, the log also its file.
        return PluginFault(cls.__qualname__, *origin, f"{call} at {place_of(cls)}", error)
