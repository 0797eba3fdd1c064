"""Sends a stream of outputs as server-sent events, in raw bytes, to one client. Front end, event loop.

The generator is pulled: while a client does not read, nothing is taken from the engine's stream, whose deltas are then
joined, so a slow reader costs neither other requests nor memory. Headers wait for the first output, so that a rejected
request gets its own status, but no longer than HEAD_START_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from tenonry.outputs import RequestOutput
from tenonry_openai_server.disconnect import Disconnected, DisconnectWatch
from tenonry_openai_server.errors import as_api_error
from tenonry_openai_server.guard import RAW_SEND, REQUEST_ID
from tenonry_openai_server.helper_thread import logprobs_size, off_loop
from tenonry_openai_server.protocol.chunks import DONE, ChunkWriter, on_one_line

logger = logging.getLogger("tenonry.server")

HEAD_START_S = 5.0
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """A response that writes itself; errors before its first output are raised, later ones end it as an event."""

    def __init__(self, outputs: AsyncGenerator[RequestOutput, None], write: ChunkWriter) -> None:
        self.outputs, self.write = outputs, write
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with DisconnectWatch(receive) as watch, aclosing(self.outputs):
                head = _Head(send)
                try:
                    first = await anext(self.outputs)
                except Exception as error:
                    if not head.stop():
                        raise
                    await head.send()
                    await self._fail(scope, error, watch)
                    return
                head.stop()
                await head.send()
                await self._pump(first, scope, watch)
        except Disconnected:
            logger.info("request %s: client disconnected; aborted", scope.get(REQUEST_ID, ""))

    async def _pump(self, first: RequestOutput, scope: Scope, watch: DisconnectWatch) -> None:
        send: Send = scope[RAW_SEND]
        write: Callable[[RequestOutput], bytes] = self.write
        may_be_long = self.write.context.options.include_logprobs
        try:
            data = await self._write(first)
            if data:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            async for output in self.outputs:
                data = await self._write(output) if may_be_long else write(output)
                if data:
                    await send({"type": "http.response.body", "body": data, "more_body": True})
            data = self.write.close()
        except Exception as error:  # noqa: BLE001  the status has been sent: the error is an event of the stream
            await self._fail(scope, error, watch)
            return
        watch.stop()
        await send({"type": "http.response.body", "body": data, "more_body": False})

    async def _write(self, output: RequestOutput) -> bytes:
        """Write the events of an output, off the loop if it has many log-probabilities."""
        return await off_loop(logprobs_size([output]), lambda: self.write(output))

    async def _fail(self, scope: Scope, error: Exception, watch: DisconnectWatch) -> None:
        """The event that official clients raise as an error, then the end of the stream."""
        answer = as_api_error(error, scope.get(REQUEST_ID, ""))
        watch.stop()
        send: Send = scope[RAW_SEND]
        body = on_one_line(b"data: " + answer.body() + b"\n\n") + DONE
        await send({"type": "http.response.body", "body": body, "more_body": False})


class PartStream(Response):
    """Event response of a route plugin, written like an `EventStream`."""

    def __init__(
        self,
        parts: AsyncGenerator[bytes, None],
        refuse: Callable[[Exception], Response],
        fail: Callable[[Exception], bytes],
    ) -> None:
        self.parts = parts
        self.refuse = refuse
        self.fail = fail
        self.status_code = 200
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with DisconnectWatch(receive) as watch, aclosing(self.parts):
                head = _Head(send)
                try:
                    first = await anext(self.parts, b"")
                except Exception as error:  # noqa: BLE001  the plugin encodes it in its protocol
                    if not head.stop():
                        watch.stop()
                        await self.refuse(error)(scope, receive, send)
                        return
                    await head.send()
                    await self._end(self.fail(error), watch, send)
                    return
                head.stop()
                await head.send()
                await self._pump(first, watch, send)
        except Disconnected:
            logger.info("request %s: client disconnected; aborted", scope.get(REQUEST_ID, ""))

    async def _pump(self, first: bytes, watch: DisconnectWatch, send: Send) -> None:
        last = b""
        try:
            await send(
                {"type": "http.response.body", "body": on_one_line(first), "more_body": True}
            )
            async for part in self.parts:
                body = on_one_line(part)
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except Exception as error:  # noqa: BLE001  the status has been sent: the error is an event of the stream
            last = self.fail(error)
        await self._end(last, watch, send)

    async def _end(self, data: bytes, watch: DisconnectWatch, send: Send) -> None:
        watch.stop()
        await send({"type": "http.response.body", "body": on_one_line(data), "more_body": False})


class _Head:
    """Sends the headers once: on demand, or after HEAD_START_S without an output."""

    __slots__ = ("_send", "_task", "_timer")

    def __init__(self, send: Send) -> None:
        self._send = send
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(HEAD_START_S, self._begin)

    def _begin(self) -> None:
        if self._task is None:
            self._task = asyncio.ensure_future(self._start())

    async def _start(self) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})

    def stop(self) -> bool:
        """End the wait; returns True if the headers are sent or being sent."""
        self._timer.cancel()
        return self._task is not None

    async def send(self) -> None:
        """Send the headers, unless they were sent."""
        if self._task is None:
            await self._start()
        else:
            await self._task
