"""A small HTTP client for streamed completions over a raw socket, so that only the server is timed. Client process.

One connection per request, HTTP/1.1; it supports all forms of a response to a POST: a body with a length, in chunks, or
until the connection closes.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenonry.errors import ConfigError, TenonryError

READ_BYTES = 65_536
MAX_ERROR_BYTES = 2_000


class HttpFailure(TenonryError):
    """The server answered with an error, or with something that is no HTTP."""


class Usage(msgspec.Struct):
    """Token counts as the server reports them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class Chunk(msgspec.Struct):
    """One event of a streamed completion. `error`: failure reported by a server within a stream."""

    choices: list[msgspec.Raw] = []
    usage: Usage | None = None
    error: Any = None


class Endpoint(NamedTuple):
    """Address of a server."""

    host: str
    port: int
    secure: bool
    prefix: str

    @classmethod
    def parse(cls, base_url: str) -> Endpoint:
        """From `http://host:port`, with or without a path. Raises ConfigError."""
        parts = urlsplit(base_url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in {"http", "https"} or not parts.hostname or port == -1:
            raise ConfigError(f"--base-url '{base_url}' must look like http://127.0.0.1:8000")
        secure = parts.scheme == "https"
        return cls(
            parts.hostname,
            port or (443 if secure else 80),
            secure,
            parts.path.rstrip("/").removesuffix("/v1"),
        )

    @property
    def authority(self) -> str:
        """Host and port as the header Host has them: IPv6 addresses in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Client:
    """Sends requests to one server."""

    def __init__(self, endpoint: Endpoint, api_key: str | None = None) -> None:
        self._endpoint = endpoint
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._tls = ssl.create_default_context() if endpoint.secure else None

    async def get(self, path: str) -> tuple[int, bytes]:
        """Status and body. Raises OSError when no server answers."""
        return await self._whole("GET", path, b"")

    async def post(self, path: str, payload: bytes) -> tuple[int, bytes]:
        """Status and body of an answer that is no stream. Raises OSError for a lost connection."""
        return await self._whole("POST", path, payload)

    async def _whole(self, method: str, path: str, payload: bytes) -> tuple[int, bytes]:
        response = await self._open(method, path, payload)
        try:
            return response.status, await response.read_all()
        finally:
            response.close()

    async def stream(self, path: str, payload: bytes) -> AsyncIterator[tuple[float, Chunk]]:
        """POST; yields each event with the moment its bytes arrived, in seconds of `time.perf_counter`.

        Raises HttpFailure for any status but 200 and for an error within the stream, OSError for a lost connection.
        """
        response = await self._open("POST", path, payload)
        try:
            if response.status != 200:
                text = (await response.read_all())[:MAX_ERROR_BYTES]
                raise HttpFailure(
                    f"status {response.status}: {text.decode('utf-8', 'replace').strip()}"
                )
            events = EventSplitter()
            while data := await response.read():
                now = time.perf_counter()
                for event in events.feed(data):
                    if event == b"[DONE]":
                        return
                    chunk = msgspec.json.decode(event, type=Chunk)
                    if chunk.error is not None:
                        raise HttpFailure(
                            f"error in the stream: {str(chunk.error)[:MAX_ERROR_BYTES]}"
                        )
                    yield now, chunk
        finally:
            response.close()

    async def _open(self, method: str, path: str, payload: bytes) -> Response:
        endpoint = self._endpoint
        reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=self._tls)
        head = (
            f"{method} {endpoint.prefix}{path} HTTP/1.1\r\nHost: {endpoint.authority}\r\n{self._key}"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        writer.write(head.encode() + payload)
        try:
            await writer.drain()
            return Response(reader, writer, await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError as error:
            writer.close()
            raise ConnectionError(
                f"the server closed the connection after {len(error.partial)} bytes"
            ) from None
        except BaseException:
            writer.close()
            raise


class Response:
    """Head of an answer, and its body as it comes."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes
    ) -> None:
        self._reader, self._writer = reader, writer
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ", 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not words[1].isdecimal():
            raise HttpFailure(f"the answer is not HTTP: {first[:80]!r}")
        self.status = int(words[1])
        headers = {
            key.strip().lower(): value.strip()
            for key, _, value in (line.partition(":") for line in lines)
        }
        self._decoder = (
            ChunkDecoder() if "chunked" in headers.get("transfer-encoding", "").lower() else None
        )
        length = headers.get("content-length", "")
        self._left = int(length) if length.isdecimal() and self._decoder is None else None

    async def read(self) -> bytes:
        """The next piece of the body, nothing at its end. Raises ConnectionError when it ends too early."""
        while self._left != 0 and not (self._decoder and self._decoder.done):
            data = await self._reader.read(READ_BYTES)
            if not data:
                if self._decoder is not None or self._left is not None:
                    raise ConnectionError(
                        "the server closed the connection in the middle of a body"
                    )
                return b""
            if self._left is not None:
                self._left -= len(data)
            if self._decoder is not None:
                data = self._decoder.feed(data)
            if data:
                return data
        return b""

    async def read_all(self) -> bytes:
        """The whole body."""
        pieces = []
        while data := await self.read():
            pieces.append(data)
        return b"".join(pieces)

    def close(self) -> None:
        self._writer.close()


class ChunkDecoder:
    """Decodes the chunked transfer coding (RFC 9112, section 7.1), however it is split into reads."""

    def __init__(self) -> None:
        self._buffer = b""
        self._left = 0  # bytes of the current chunk, its closing CRLF included
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """Decode the content in `data`. Raises HttpFailure for invalid chunks."""
        buffer, out = self._buffer + data, []
        while buffer and not self.done:
            if self._left:
                part, buffer = buffer[: self._left], buffer[self._left :]
                out.append(part[: max(0, self._left - 2)])
                self._left -= len(part)
                continue
            line, end, rest = buffer.partition(b"\r\n")
            if not end:
                break
            buffer = rest
            try:
                size = int(line.split(b";")[0], 16)
            except ValueError:
                raise HttpFailure(f"not the size of a chunk: {line[:40]!r}") from None
            self._left, self.done = size + 2, size == 0
        self._buffer = buffer
        return b"".join(out)


class EventSplitter:
    """Splits a stream of bytes into server-sent events; returns the data of each."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Data of the events that are complete now; comments and other fields are skipped."""
        text = (self._buffer + data).replace(b"\r\n", b"\n")
        *events, self._buffer = text.split(b"\n\n")
        found = [event_data(event) for event in events]
        return [event for event in found if event]


def event_data(event: bytes) -> bytes:
    """The `data` field of one event; its lines joined."""
    lines = [
        line[5:].removeprefix(b" ") for line in event.split(b"\n") if line.startswith(b"data:")
    ]
    return b"\n".join(lines)
