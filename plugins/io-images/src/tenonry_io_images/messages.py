"""What passes between a front end and the process that decodes its images: frames on pipes. Light."""

from __future__ import annotations

import struct
from typing import IO, TypeVar

import msgspec
import numpy as np

LENGTH = struct.Struct("<Q")
T = TypeVar("T")


class Setup(msgspec.Struct, array_like=True):
    """First message: the model's folder, and what one image may take."""

    path: str
    max_pixels: int
    seconds: float


class Ready(msgspec.Struct, array_like=True):
    """The answer to it: the token that stands for an image, or why there will be no images."""

    token_id: int = -1
    error: str = ""


class Job(msgspec.Struct, array_like=True):
    """One image file."""

    data: bytes


class Made(msgspec.Struct, array_like=True):
    """The answer: what is wrong with the image, or what was made of it; arrays as (data type, shape, bytes).

    The other fields are those of `ProcessedImage`.
    """

    error: str = ""
    token_ids: list[int] = []
    first: int = 0
    count: int = 0
    inputs: dict[str, tuple[str, list[int], bytes]] = {}
    before: str = ""
    after: str = ""
    whole: list[tuple[int, int]] = []


def packed(array: np.ndarray) -> tuple[str, list[int], bytes]:
    """An array as it is sent."""
    return array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()


def unpacked(sent: tuple[str, list[int], bytes]) -> np.ndarray:
    """The array again; read-only."""
    kind, shape, data = sent
    return np.frombuffer(data, np.dtype(kind)).reshape(shape)


def write_message(stream: IO[bytes], message: msgspec.Struct) -> None:
    """One message, its length in front."""
    body = msgspec.msgpack.encode(message)
    stream.write(LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def read_message(stream: IO[bytes], kind: type[T]) -> T | None:
    """The next message, None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    if len(body) < length:
        return None
    return msgspec.msgpack.decode(body, type=kind)
