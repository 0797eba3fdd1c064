"""Latest steps from decision records, whose frames are msgpack maps that follow their length in bytes. Front end."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

_LENGTH = struct.Struct("<I")
LATEST = 20


def latest_steps(parts: Sequence[bytes]) -> list[dict[str, int]]:
    """The last steps of each engine, newest first: number, tokens, and free KV blocks (-1 if not counted).

    `parts`: frames of each engine. Raises msgspec.DecodeError for a frame that is no msgpack.
    """
    steps: list[dict[str, int]] = []
    for part in parts:
        own: list[dict[str, int]] = []
        for frame in _frames(part):
            if frame.get("type") == "chunk" and frame.get("source", "live") == "live":
                own = [*own, *_steps(frame)][-LATEST:]
        steps += reversed(own)
    return steps


def _frames(data: bytes) -> Iterator[dict[str, Any]]:
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        yield msgspec.msgpack.decode(data[start : start + length])
        start += length


def _steps(chunk: dict[str, Any]) -> Iterator[dict[str, int]]:
    first, count = chunk["first_step"], chunk["num_steps"]
    columns = (struct.unpack(f"<{count}i", chunk[name]) for name in ("total_tokens", "free_blocks"))
    for number, (tokens, free) in enumerate(zip(*columns, strict=True), first):
        yield {"step": number, "tokens": tokens, "free_blocks": free}
