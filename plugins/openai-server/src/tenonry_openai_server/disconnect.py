"""Detects disconnected clients during a response, and stops the work immediately. Front end."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class Disconnected(Exception):
    """The client has disconnected; no answer can be delivered."""


class DisconnectWatch:
    """`async with DisconnectWatch(receive):` cancels its body when the client disconnects, and raises Disconnected.

    The body of the request must have been read before. `stop()` ends the watch before the response is complete, after
    which servers report a disconnect that means nothing.
    """

    __slots__ = ("_gone", "_receive", "_task", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """End the watch. The reference to the watcher is dropped: its traceback refers to this object."""
        if self._watcher is not None:
            self._watcher.cancel()
            self._watcher = None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if (
            self._gone
            and kind is asyncio.CancelledError
            and self._task is not None
            and not self._task.uncancel()
        ):
            raise Disconnected from None
