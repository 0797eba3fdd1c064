"""Decodes request bodies in gzip, deflate and zstd before a route reads them: plain ASGI. Front end.

Decoding is incremental, and it ends at two bounds: that of any body, and a ratio to the bytes that were sent, so that a
few kilobytes cannot keep the server busy. Only one coding is accepted; several layers are useful to attackers only.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import zlib
from collections.abc import Callable, Generator, Iterator, MutableMapping
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry_openai_server.errors import APIError, bad_request

FREE_BYTES = 1 << 20  # decoded bytes that need no ratio
MAX_RATIO = 256  # decoded bytes per byte sent, above these
PART_BYTES = 64 << 10
INLINE_BYTES = 4 << 10  # longer bodies are decoded on a helper thread
MAX_ZSTD_WINDOW_LOG = 23  # 8 MiB, the limit of RFC 9659 for web content
GZIP, ZLIB, RAW_DEFLATE = 31, 15, -15  # `wbits` of zlib


class BodyDecoder:
    """Passes the decoded body to routes. `max_bytes`: maximum size of any body, decoded or not."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self.app = app
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        coding = _coding(scope)
        if coding not in ("", "identity"):
            receive = _Decoded(receive, coding, self.max_bytes)
        await self.app(scope, receive, send)


class _Decoded:
    """`receive` of an encoded body: one message with all of it, followed by those of the connection."""

    def __init__(self, receive: Receive, coding: str, max_bytes: int) -> None:
        self._receive = receive
        self._coding = coding
        self._max_bytes = max_bytes
        self._is_read = False

    async def __call__(self) -> MutableMapping[str, Any]:
        if self._is_read:
            return await self._receive()
        check_coding(self._coding)
        parts = []
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                return message
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        self._is_read = True
        encoded = b"".join(parts)
        if len(encoded) <= INLINE_BYTES:
            body = decode(self._coding, encoded, self._max_bytes)
        else:
            body = await asyncio.to_thread(decode, self._coding, encoded, self._max_bytes)
        return {"type": "http.request", "body": body, "more_body": False}


def _coding(scope: Scope) -> str:
    values = [value for name, value in scope["headers"] if name == b"content-encoding"]
    return b",".join(values).decode("latin-1").strip().lower()


def check_coding(coding: str) -> None:
    """Raise APIError 415 for an unsupported coding, with the supported ones."""
    if coding not in _DECODERS:
        accepted = ", ".join(CODINGS)
        raise APIError(
            415,
            f"the content encoding is '{coding[:64]}'; send one of {accepted}, or none",
            code="unsupported_encoding",
            headers={"accept-encoding": accepted},
        )


def decode(coding: str, body: bytes, max_bytes: int) -> bytes:
    """The decoded body. Raises APIError 400 for damaged data and 413 above the bounds."""
    most = min(max_bytes, max(FREE_BYTES, MAX_RATIO * len(body)))
    parts = []
    size = 0
    try:
        for part in _DECODERS[coding](body):
            size += len(part)
            if size > most:
                raise _too_large(len(body), max_bytes, most)
            parts.append(part)
    except (zlib.error, EOFError, _zstd_error()) as error:
        raise bad_request(
            f"the body is not valid {coding}: {error}", code="invalid_encoding"
        ) from None
    return b"".join(parts)


def _too_large(sent: int, max_bytes: int, most: int) -> APIError:
    if most == max_bytes:
        message = f"the decoded request body is larger than {max_bytes} bytes (--max-body-bytes)"
    else:
        message = (
            f"the request body of {sent} bytes decodes to more than {most} bytes; above {FREE_BYTES} bytes it may grow "
            f"{MAX_RATIO}-fold: send it without content-encoding"
        )
    return APIError(413, message, code="request_too_large")


def _gzip(body: bytes) -> Iterator[bytes]:
    """One member after another, as RFC 1952 has it."""
    while body:
        body = yield from _inflate(body, GZIP)


def _deflate(body: bytes) -> Iterator[bytes]:
    """Decode zlib's format, the HTTP meaning of the name, or bare deflate data, sent by some clients."""
    has_header = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    if body and (yield from _inflate(body, ZLIB if has_header else RAW_DEFLATE)):
        raise EOFError("something follows its end")


def _inflate(body: bytes, wbits: int) -> Generator[bytes, None, bytes]:
    """Yield the decoded parts; returns the bytes after the end."""
    decoder = zlib.decompressobj(wbits)
    while not decoder.eof:
        part = decoder.decompress(body, PART_BYTES)
        body = decoder.unconsumed_tail
        if not part and not body and not decoder.eof:
            raise EOFError("its end is missing")
        yield part
    return decoder.unused_data


def _unzstd(body: bytes) -> Iterator[bytes]:
    zstd = zstd_module()
    options = {zstd.DecompressionParameter.window_log_max: MAX_ZSTD_WINDOW_LOG}
    while body:
        decoder = zstd.ZstdDecompressor(options=options)
        while not decoder.eof:
            part = decoder.decompress(body, PART_BYTES)
            body = b""
            if not part and decoder.needs_input and not decoder.eof:
                raise EOFError("its end is missing")
            yield part
        body = decoder.unused_data


def zstd_module() -> Any:
    """The standard library's module since Python 3.14, its backport before."""
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    return importlib.import_module(name)


def _zstd_error() -> type[Exception]:
    error: type[Exception] = zstd_module().ZstdError
    return error


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _unzstd,
}
CODINGS = ("gzip", "deflate", "zstd")
