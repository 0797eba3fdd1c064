"""HTTP client of a server, with retries while it is busy or unreachable. The command's process."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import httpx

from tenonry.errors import LaunchError
from tenonry_openai_server.batch.requests import Request

BUSY = frozenset({429, 502, 503, 504})
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 60.0
READY_POLL_S = 0.1


class Reply(NamedTuple):
    """Response of a request. Without a response `status` is 0, and `body` holds the reason."""

    status: int
    request_id: str
    body: bytes


class BatchClient:
    """`check` raises when the server is known to have ended."""

    def __init__(self, client: httpx.AsyncClient, attempts: int, check: Callable[[], None]) -> None:
        self._client = client
        self._attempts = attempts
        self._check = check

    async def wait_until_ready(self, deadline_s: float) -> None:
        """Wait for a server of our own. Raises LaunchError when it exits, or is not ready in time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        while loop.time() < end:
            self._check()
            try:
                if (await self._client.get("/ready")).status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(READY_POLL_S)
        raise LaunchError(f"the server is not ready after {deadline_s:g} s (--timeout)")

    async def ask(self, request: Request) -> Reply:
        """The answer; after the last attempt without one, a reply of status 0."""
        why = ""
        for attempt in range(self._attempts):
            wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
            try:
                response = await self._client.post(
                    request.url, content=request.body, headers={"content-type": "application/json"}
                )
            except httpx.TransportError as error:
                self._check()
                why = f"{type(error).__name__}: {error}".rstrip(": ")
            else:
                if response.status_code not in BUSY:
                    request_id = response.headers.get("x-request-id", "")
                    return Reply(response.status_code, request_id, response.content)
                why = f"HTTP {response.status_code}: {response.text:.200}"
                wait_s = _asked_wait(response, wait_s)
            if attempt + 1 < self._attempts:
                await asyncio.sleep(wait_s * random.uniform(1.0, 1.25))  # noqa: S311  to spread retries
        return Reply(0, "", why.encode())


def _asked_wait(response: httpx.Response, otherwise_s: float) -> float:
    """Seconds requested by the server."""
    asked = response.headers.get("retry-after", "")
    return min(LONGEST_WAIT_S, float(asked)) if asked.isdecimal() else otherwise_s
