"""Wire format between an engine and its ranks: packets of frames, calls by name, errors as text. Both processes.

A packet is its size, a sequence number, a kind, and the frames of one message as `tenonry.transport.serial` makes them,
each on a multiple of eight bytes. An answer carries the sequence number and the kind of its request.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from tenonry import errors
from tenonry.errors import TenonryError, WireError
from tenonry.transport.serial import MAX_FRAMES, Frame

_HEAD = struct.Struct("<QQII")  # size of the packet, sequence, kind, number of frames
_ALIGN = 8
FAILED = 128  # added to the kind of an answer that is a `Fault`


class Kind(enum.IntEnum):
    """A step of the model, a task of the start-up sequence, or a call from the worker's allow-list."""

    STEP = 1
    TASK = 2
    CALL = 3


class RankCall(msgspec.Struct, array_like=True):
    """A method by name, and its arguments as plain values."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class Transfers(msgspec.Struct, array_like=True):
    """Answer of a rank other than the driver to a step: handles whose KV transfer ended there."""

    done: list[int]
    failed: list[int]


class Packet(NamedTuple):
    """A packet as it was received."""

    kind: int
    sequence: int
    frames: list[memoryview]


def pack(kind: int, sequence: int, frames: Sequence[Frame]) -> bytes:
    """One packet; the only copy that the sender makes."""
    sizes = [memoryview(frame).nbytes for frame in frames]
    start = _HEAD.size + 8 * len(frames)
    size = start + sum(length + -length % _ALIGN for length in sizes)
    parts: list[Frame] = [
        _HEAD.pack(size, sequence, kind, len(frames)),
        struct.pack(f"<{len(sizes)}Q", *sizes),
    ]
    for frame, length in zip(frames, sizes, strict=True):
        parts += (frame, bytes(-length % _ALIGN))
    return b"".join(parts)


def packet_size(data: bytes | bytearray) -> int:
    """Bytes of the packet that begins with `data`, at least eight of them."""
    return int.from_bytes(data[:8], "little")


def unpack(data: bytes) -> Packet:
    """The packet at the beginning of `data`; its frames are views. Raises WireError."""
    size, sequence, kind, count = _HEAD.unpack_from(data)
    if size > len(data) or count > MAX_FRAMES:
        raise WireError(f"a packet of {size} bytes in {count} frames came as {len(data)} bytes")
    view = memoryview(data)
    frames = []
    at = _HEAD.size + 8 * count
    for length in struct.unpack_from(f"<{count}Q", data, _HEAD.size):
        frames.append(view[at : at + length])
        at += length + -length % _ALIGN
    if at != size:
        raise WireError(f"a packet of {size} bytes holds frames of {at}")
    return Packet(kind, sequence, frames)


class PacketStream:
    """Cuts the bytes of a stream socket into packets."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The packets that are complete with `data`, each for `unpack`."""
        if not self._rest and len(data) >= 8 and packet_size(data) == len(data):
            yield data
            return
        self._rest += data
        while len(self._rest) >= 8 and len(self._rest) >= (size := packet_size(self._rest)):
            yield bytes(self._rest[:size])
            del self._rest[:size]


class Fault(msgspec.Struct, array_like=True):
    """An exception of a rank: the class to raise at the caller, its text, and the responsible plugin."""

    type: str
    text: str
    plugin: str = ""


_RAISABLE: dict[str, type[Exception]] = {
    cls.__name__: cls
    for cls in (
        errors.ConfigError,
        errors.PluginError,
        errors.PluginNotFound,
        errors.PluginIncompatible,
        errors.ModelError,
        errors.RequestError,
        errors.LaunchError,
        errors.WireError,
        errors.Unsupported,
        errors.TenonryError,
        MemoryError,
        OSError,
        RuntimeError,
        TypeError,
        ValueError,
    )
}


def describe_error(error: Exception) -> Fault:
    """The nearest class that can be raised elsewhere; the text keeps the name of any other."""
    kind = type(error)
    near = next((cls for cls in kind.__mro__ if _RAISABLE.get(cls.__name__) is cls), TenonryError)
    text = str(error) or "no text"
    text = text if near is kind else f"{kind.__name__}: {text}"
    return Fault(near.__name__, text, getattr(error, "plugin", ""))


def rebuild_error(fault: Fault, rank: str) -> Exception:
    """The exception to raise at the caller, with the rank named."""
    error = _RAISABLE.get(fault.type, TenonryError)(f"{rank}: {fault.text}")
    error.plugin = fault.plugin  # type: ignore[attr-defined] - as PluginFault has it
    return error
