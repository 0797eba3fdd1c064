"""Size limits on requests, checked before anything is parsed: plain ASGI, in front of every route. Front end."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry_openai_server.errors import APIError
from tenonry_openai_server.guard import header


class BodyLimit:
    """Bounds the size of a body, and the wait for its next part.

    A declared length above the limit is answered without reading; a chunked body is counted as it arrives.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        declared = header(scope, b"content-length")
        if declared is not None and (
            not declared.isdigit() or len(declared) > 15 or int(declared) > self.max_bytes
        ):
            raise self._too_large()
        received = 0
        complete = False

        async def receive_bounded() -> MutableMapping[str, Any]:
            nonlocal received, complete
            if complete:
                return await receive()  # waits for the client to disconnect, without a time limit
            message = await self._next_part(receive)
            received += len(message.get("body", b""))
            if received > self.max_bytes:
                raise self._too_large()
            complete = not message.get("more_body", False)
            return message

        await self.app(scope, receive_bounded, send)

    async def _next_part(self, receive: Receive) -> MutableMapping[str, Any]:
        try:
            async with asyncio.timeout(self.timeout_s):
                return await receive()
        except TimeoutError:
            message = f"no more of the request body came for {self.timeout_s:g} s"
            raise APIError(408, message, code="timeout", headers={"connection": "close"}) from None

    def _too_large(self) -> APIError:
        message = f"the request body is larger than {self.max_bytes} bytes (--max-body-bytes)"
        return APIError(413, message, code="request_too_large")
