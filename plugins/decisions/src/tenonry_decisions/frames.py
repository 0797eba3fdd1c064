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
from typing import Any, BinaryIO

import msgspec
import numpy as np

from tenonry.kv_cache import KVCacheGroup

FORMAT = 1
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


class RequestFacts(msgspec.Struct, array_like=True):
    """A request as it arrived, before step `step`. `key`: its place in the queue, where the scheduler sets one."""

    handle: int
    request_id: str
    step: int
    time: float
    num_prompt: int
    num_delivered: int
    max_total: int
    priority: int
    key: Any = None


class Chunk(msgspec.Struct, tag="chunk", kw_only=True):
    """Consecutive steps. Columns are little-endian arrays of the types in `COLUMNS`, S long unless noted; steps count
    from `first_step`, in columns from 0.

    `handle_of_row`: [R] before the first step, 0 where free. `ran`: bits [P, R], sets of rows that computed together;
    `ran_set`: the one of each step. `other_*`: rows that computed another number of tokens than one. `total_tokens`: of
    the step. `free_blocks`: after it, −1 if the scheduler has no count. `start_*`: requests that got a row;
    `start_computed` of their `start_length` tokens had K/V. `gone_*`: rows that were given up. `got_*`: tokens of a
    request in a multi-token step; in others a row that samples gets one. `end_*`: endings, with the step that follows,
    and the tokens that the request had.
    `held_*`: requests that were held back in a step, `held_by` whom; `pending_*`: requests that were not ready, and
    for what.
    """

    run: int = 0
    source: str = LIVE
    first_step: int
    num_steps: int
    requests: list[RequestFacts] = []
    handle_of_row: bytes
    time: bytes
    total_tokens: bytes
    round_tokens: bytes
    free_blocks: bytes
    ran: bytes
    ran_set: bytes
    other_step: bytes
    other_row: bytes
    other_tokens: bytes
    start_step: bytes
    start_row: bytes
    start_handle: bytes
    start_computed: bytes
    start_length: bytes
    gone_step: bytes
    gone_row: bytes
    got_step: bytes
    got_handle: bytes
    got_tokens: bytes
    end_step: bytes
    end_handle: bytes
    end_reason: bytes
    end_length: bytes
    held_step: bytes
    held_handle: bytes
    held_by: list[str] = []
    pending_step: bytes
    pending_handle: bytes
    pending_for: list[str] = []


COLUMNS: dict[str, str] = {
    name: "<f8" if name == "time" else "<u8" if "handle" in name else "u1" if name == "ran" else "<i4"
    for name, kind in Chunk.__annotations__.items()
    if kind == "bytes"
}  # fmt: skip

Frame = Header | Chunk
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


def column(chunk: Chunk, name: str) -> np.ndarray:
    """A column as an array; `ran` as bits."""
    return np.frombuffer(getattr(chunk, name), COLUMNS[name])


def to_bytes(name: str, values: Any) -> bytes:
    """The bytes of a column; most are empty in most chunks."""
    return np.asarray(values, COLUMNS[name]).tobytes() if len(values) else b""


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
