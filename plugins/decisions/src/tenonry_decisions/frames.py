"""The format of decision records: frames of msgpack, in a file, a message or memory. Any process.

A frame is its length in bytes (u32, little-endian) and a msgpack map with the key `type`. A `Header` opens the records
of one engine start, or of its shadow; the `Chunk`s that follow with the same `run` and `source` are its steps, in order
and without gaps. Several starts may append to one file, interleaved while one engine replaces another. A truncated last
frame is ignored: the process ended during a write.

Frames hold what happened. Reasons are derived from them by the reader (`tenonry_decisions.reasons`), so that the engine
computes nothing unrequested.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from io import FileIO
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np

from tenonry.kv_cache import KVCacheGroup

FORMAT = 2
LIVE = "live"
SHADOW = "shadow"
CHUNK_STEPS = 256
UNKNOWN = -1
_LENGTH = struct.Struct("<I")
_MAP = b"\xde"  # mark of a map, which two bytes of its size and its first key follow
_TYPE_KEY = b"\xa4type"
_PREFIX = _LENGTH.size + 3 + len(_TYPE_KEY)


class Header(msgspec.Struct, tag="header", kw_only=True):
    """Engine and scheduler of the chunks with the same `run` and `source`. `run`: random id of an engine start, shared
    with its shadow. `origin`: distribution and version. `policy`: a plugin of the scheduler's own that decides with it.
    `started_at`: Unix time at which the scheduler's clock showed `clock`.
    """

    format: int = FORMAT
    run: int = 0
    source: str = LIVE
    engine: int = 0
    scheduler: str
    origin: str = ""
    policy: str = ""
    started_at: float = 0.0
    clock: float = 0.0
    max_num_seqs: int
    token_budget: int
    max_model_len: int
    num_blocks: int
    block_size: int
    num_state_slots: int = 0
    groups: tuple[KVCacheGroup, ...] = ()
    chunked_prefill: bool = True
    prefix_caching: bool = True
    max_concurrent_steps: int = 1


class RequestFacts(NamedTuple):
    """A request as it arrived, before step `step`. `key`: its place in the queue, where the scheduler sets one."""

    handle: int
    step: int
    time: float
    num_prompt: int
    num_delivered: int
    max_total: int
    priority: int
    request_id: str
    key: Any = None


class Chunk(msgspec.Struct, tag="chunk", kw_only=True):
    """Consecutive steps. `TABLES` has the fields of the tables, little-endian and packed. Steps count from
    `first_step`, in tables from 0.

    `requests`: those that arrived, with `request_ids` and `keys`.
    `handle_of_row`: u64[R] before the first step, 0 where free; empty where the records before are there. `ran`: bits
    [P, R], sets of rows that ran together.
    `steps`: `set` is the one of each step; `free_blocks` after it, −1 if the scheduler has no count. `other`: rows that
    computed another number of tokens than one. `starts`: requests that got a row; `computed` of their `length` tokens
    had K/V. `gone`: rows that were given up. `got`: tokens of a request in a multi-token step; in others a row that
    samples gets one. `ends`: endings, with the step that follows, and the tokens that the request had. `held`: requests
    that were held back in a step, `held_by` whom; `pending`: requests that were not ready, and for what.
    """

    run: int = 0
    source: str = LIVE
    first_step: int
    num_steps: int
    requests: bytes = b""
    request_ids: list[str] = []
    keys: list[Any] = []
    handle_of_row: bytes = b""
    ran: bytes
    steps: bytes
    other: bytes = b""
    starts: bytes = b""
    gone: bytes = b""
    got: bytes = b""
    ends: bytes = b""
    held: bytes = b""
    held_by: list[str] = []
    pending: bytes = b""
    pending_for: list[str] = []


_FORMATS = {"i": "<i4", "Q": "<u8", "d": "<f8"}  # of the module struct, and of numpy


class Table:
    """Records of equal fields. `fields`: names with a format of the module struct each."""

    def __init__(self, **fields: str) -> None:
        self.dtype = np.dtype([(name, _FORMATS[kind]) for name, kind in fields.items()])
        self.record = struct.Struct("<" + "".join(fields.values())).pack

    def records(self, length: int, **columns: Any) -> bytes:
        """Bytes of `length` records; a column is an array or one value for all."""
        found = np.empty(length, self.dtype)
        for name, values in columns.items():
            found[name] = values
        return found.tobytes()

    def read(self, data: bytes | bytearray) -> np.ndarray:
        """The records as a structured array, which shares the memory."""
        return np.frombuffer(data, self.dtype)


TABLES = {
    "requests": Table(
        handle="Q",
        step="i",
        time="d",
        num_prompt="i",
        num_delivered="i",
        max_total="i",
        priority="d",
    ),
    "steps": Table(set="i", time="d", total_tokens="i", round_tokens="i", free_blocks="i"),
    "other": Table(step="i", row="i", tokens="i"),
    "starts": Table(step="i", row="i", handle="Q", computed="i", length="i"),
    "gone": Table(step="i", row="i"),
    "got": Table(step="i", handle="Q", tokens="i"),
    "ends": Table(step="i", handle="Q", reason="i", length="i"),
    "held": Table(step="i", handle="Q"),
    "pending": Table(step="i", handle="Q"),
}

Frame = Header | Chunk
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode

NUMBERS = TABLES["requests"].dtype.names or ()  # of a request


def table(chunk: Chunk, name: str) -> np.ndarray:
    """A table as a structured array."""
    return TABLES[name].read(getattr(chunk, name))


def facts_of(chunk: Chunk) -> list[RequestFacts]:
    """The requests that arrived."""
    requests = zip(table(chunk, "requests").tolist(), chunk.request_ids, chunk.keys, strict=True)
    return [
        RequestFacts(*numbers, int(priority), request_id, key)
        for (*numbers, priority), request_id, key in requests
    ]


def pack(frame: Frame) -> bytes:
    """One frame with its length."""
    text = _encode(frame)
    return _LENGTH.pack(len(text)) + text


def unpack(data: bytes) -> Iterator[Frame]:
    """Yield the frames of a file or message. Raises ValueError for anything else."""
    start = 0
    while start + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, start)
        start += _LENGTH.size
        if start + length > len(data):
            return
        try:
            frame = _decode(data[start : start + length])
        except msgspec.DecodeError as error:
            raise ValueError(
                f"invalid decision record at byte {start - _LENGTH.size}: {error}"
            ) from None
        if isinstance(frame, Header) and frame.format != FORMAT:
            raise ValueError(
                f"decision records of format {frame.format}; this reads format {FORMAT}"
            )
        yield frame
        start += length


def check_format(file: FileIO) -> None:
    """Raises ValueError for a file whose records have another format."""
    file.seek(0)
    length = file.read(_LENGTH.size)
    if len(length) == _LENGTH.size:
        next(unpack(length + file.read(*_LENGTH.unpack(length))), None)


def end_of_frames(file: BinaryIO | FileIO, start: int, size: int) -> int:
    """End of the last whole frame of a file, from a frame at `start` on. Raises ValueError for anything else."""
    while start < size:
        file.seek(start)
        prefix = file.read(_PREFIX)
        mark, key = prefix[_LENGTH.size : _LENGTH.size + 1], prefix[_LENGTH.size + 3 :]
        if not (_MAP.startswith(mark) and _TYPE_KEY.startswith(key)):
            raise ValueError(f"invalid decision record at byte {start}")
        if len(prefix) < _PREFIX:
            break
        (length,) = _LENGTH.unpack_from(prefix)
        stop = start + _LENGTH.size + length
        if stop > size:
            break
        start = stop
    return start


def runs(frames: Iterable[Frame]) -> list[tuple[Header, list[Chunk]]]:
    """Headers with their chunks, in order of the headers."""
    found: list[tuple[Header, list[Chunk]]] = []
    current: dict[tuple[int, str], list[Chunk]] = {}
    for frame in frames:
        key = frame.run, frame.source
        if isinstance(frame, Header):
            current[key] = []
            found.append((frame, current[key]))
        elif key in current:
            current[key].append(frame)
        else:
            raise ValueError("decision records without a header; the start of the file is missing")
    return found
