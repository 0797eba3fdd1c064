"""The client of the current request. Front end; any thread.

A server sets it once per request. It travels with the context: through awaits, and into threads that copy it, as
`asyncio.to_thread` does.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from contextvars import ContextVar

_CLIENT: ContextVar[str | None] = ContextVar("tenonry_client", default=None)
_NUMBERS = itertools.count(1)


def current_client() -> str:
    """Name of the client; a new one for each call if none is set, so that each request is its own client."""
    return _CLIENT.get() or f"request {next(_NUMBERS)}"


def has_client() -> bool:
    """Return True if a server set the client, if only to "": elsewhere there is one caller, and nothing to share."""
    return _CLIENT.get() is not None


@contextlib.contextmanager
def as_client(name: str) -> Iterator[None]:
    """Set the client for the block."""
    token = _CLIENT.set(name)
    try:
        yield
    finally:
        _CLIENT.reset(token)
