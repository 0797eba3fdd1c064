"""Request bodies of `tenonry bench helpers`: heavy ones and light ones, no two of which a server has seen before.

Standard library and msgspec only; client process.
"""

from __future__ import annotations

import base64
import os
import struct
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

CHATS = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
LIGHT_EDGE = 64  # pixels
STRIPE = 32  # pixels


class Mix(NamedTuple):
    """Requests of two clients to one route. `heavy` and `light` make a body from a number."""

    name: str
    path: str
    num_heavy: int
    heavy: Callable[[int], bytes]
    light: Callable[[int], bytes]


def schemas(num_heavy: int, num_properties: int) -> Mix:
    """Chats with an answer schema of `num_properties` optional properties, against one of three."""

    def body(number: int, count: int) -> bytes:
        names = [f"p{number:x}_{place:x}" for place in range(count)]
        schema = {
            "type": "object",
            "properties": {name: {"type": "string", "maxLength": 9} for name in names},
            "additionalProperties": False,
        }
        named = {"name": "bench", "schema": schema}
        form = {"type": "json_schema", "json_schema": named}
        return _chat("Once", response_format=form)

    return Mix(
        "schemas",
        CHATS,
        num_heavy,
        lambda number: body(number, num_properties),
        lambda number: body(number, 3),
    )


def images(num_heavy: int, megapixels: float, file_bytes: int) -> Mix:
    """Chats with a square image of `megapixels` in a file of about `file_bytes`, compared with a small one."""
    edge = round((1e6 * megapixels) ** 0.5)
    pixels = _scanlines(edge)
    light_pixels = _scanlines(LIGHT_EDGE)
    rest = os.urandom(max(0, file_bytes - len(pixels)))

    def body(number: int, edge: int, pixels: bytes, rest: bytes) -> bytes:
        data = base64.b64encode(_png(edge, pixels, b"%d " % number + rest)).decode()
        part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return _chat([part, {"type": "text", "text": "Once"}])

    return Mix(
        "images",
        CHATS,
        num_heavy,
        lambda number: body(number, edge, pixels, rest),
        lambda number: body(number, LIGHT_EDGE, light_pixels, b""),
    )


def texts(num_heavy: int, num_chars: int) -> Mix:
    """Prompts of `num_chars` characters, which are tokenised and exceed the limit, against a short one."""
    words = "so it goes, and once upon "
    text = words * (num_chars // len(words) + 1)

    def body(number: int, text: str) -> bytes:
        return msgspec.json.encode({"prompt": f"{number} {text}", "max_tokens": 1})

    return Mix(
        "texts",
        COMPLETIONS,
        num_heavy,
        lambda number: body(number, text[:num_chars]),
        lambda number: body(number, "once upon"),
    )


def _chat(content: Any, **fields: Any) -> bytes:
    messages = [{"role": "user", "content": content}]
    return msgspec.json.encode({"messages": messages, "max_tokens": 1, **fields})


def _scanlines(edge: int) -> bytes:
    """Compressed pixels of a square picture in RGB: stripes, each line of which is moved by a pixel."""
    stripe = os.urandom(3 * STRIPE)
    line = stripe * (edge // STRIPE + 2)
    packer = zlib.compressobj(1)
    parts = []
    for place in range(edge):
        start = 3 * (place % STRIPE)
        parts.append(packer.compress(b"\0" + line[start : start + 3 * edge]))
    return b"".join([*parts, packer.flush()])


def _png(edge: int, pixels: bytes, rest: bytes) -> bytes:
    """A PNG file; `rest` is in a private chunk that decoders skip."""
    header = struct.pack(">IIBBBBB", edge, edge, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"teNo", rest), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
