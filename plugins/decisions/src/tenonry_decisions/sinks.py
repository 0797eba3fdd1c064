"""Destinations of chunks: a file, and the memory of an engine. Engine process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from io import FileIO
from operator import itemgetter
from pathlib import Path

import msgspec
import numpy as np

from tenonry.errors import ConfigError
from tenonry_decisions.frames import (
    NUMBERS,
    TABLES,
    Chunk,
    Header,
    RequestFacts,
    check_format,
    end_of_frames,
    facts_of,
    pack,
    table,
)
from tenonry_decisions.settings import log_of


class EngineLog:
    """Appends the chunks of one source to the log of its engine. Raises ConfigError if the file cannot be written.

    `header` is written with the first chunk: an idle standby writes nothing, and has the index of its engine by then.
    """

    def __init__(self, log: str, header: Header, index: Callable[[], int]) -> None:
        self._log = log
        self._header: Header | None = header
        self._index = index
        self._file = FrameFile(log_of(log, index()))

    def write(self, chunk: Chunk) -> None:
        """Append a chunk."""
        if self._header is not None:
            header = msgspec.structs.replace(self._header, engine=self._index())
            path = log_of(self._log, header.engine)
            if path != self._file.path:
                self._file = FrameFile(path)
            self._file.append(header)
            self._header = None
        self._file.append(chunk)


class FrameFile:
    """File of whole frames to which several processes may append. Raises ConfigError if it cannot be written.

    Each write holds a lock, so a truncated frame belongs to a process that ended. The next write removes it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = 0  # of the frames that this process has seen
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._opened() as file:
                self._repair(file)
                check_format(file)
        except OSError as error:
            raise ConfigError(
                f"decision_log={path} cannot be written: {error.strerror}; name another file"
            ) from None
        except ValueError as error:
            raise ConfigError(f"decision_log={path}: {error}; name another file") from None

    def append(self, frame: Header | Chunk) -> None:
        """Append a frame. Raises OSError, and leaves no part of the frame, if the disk is full."""
        data = pack(frame)
        with self._opened() as file:
            self._repair(file)
            written = file.write(data)
            if written != len(data):
                file.truncate(self._end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            self._end += written

    @contextlib.contextmanager
    def _opened(self) -> Iterator[FileIO]:
        with self.path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _repair(self, file: FileIO) -> None:
        """Remove what follows the last whole frame."""
        size = file.seek(0, os.SEEK_END)
        if size != self._end:
            self._end = end_of_frames(file, self._end if self._end < size else 0, size)
            if self._end < size:
                file.truncate(self._end)


class MemorySink:
    """Keeps the chunks of the last `num_steps` steps, and the facts of every request in them."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._kept: dict[str, _Kept] = {}

    def begin(self, header: Header) -> None:
        """Expect the chunks of one more source."""
        self._kept[header.source] = _Kept(header)

    def write(self, chunk: Chunk) -> None:
        """Keep a chunk, and drop the oldest ones of its source that are not needed for `num_steps`."""
        kept = self._kept[chunk.source]
        kept.chunks.append(chunk)
        num_steps = sum(each.num_steps for each in kept.chunks)
        while num_steps - kept.chunks[0].num_steps >= self._num_steps:
            num_steps -= kept.chunks[0].num_steps
            kept.drop()

    def frames(self) -> bytes:
        """The kept records as a file would have them; the first chunk has the state before it."""
        return b"".join(pack(frame) for kept in self._kept.values() for frame in kept.frames())


class _Kept:
    """Latest chunks of a source, with the state before them: who holds which row, and the facts of live requests."""

    def __init__(self, header: Header) -> None:
        self.header = header
        self.chunks: deque[Chunk] = deque()
        self._earlier: dict[int, RequestFacts] = {}
        self._handle_of_row = np.zeros(header.max_num_seqs, "<u8")

    def drop(self) -> None:
        """Drop the oldest chunk."""
        chunk = self.chunks.popleft()
        self._earlier.update((each.handle, each) for each in facts_of(chunk))
        for handle in table(chunk, "ends")["handle"].tolist():
            self._earlier.pop(handle, None)
        events = [(step, row, 0) for step, row in table(chunk, "gone").tolist()]
        events += [each[:3] for each in table(chunk, "starts").tolist()]
        for _, row, handle in sorted(events, key=itemgetter(0)):  # rows are given up first
            self._handle_of_row[row] = handle

    def frames(self) -> Iterator[Header | Chunk]:
        """The header and the chunks."""
        yield self.header
        for place, chunk in enumerate(self.chunks):
            yield chunk if place else self._with_state(chunk)

    def _with_state(self, chunk: Chunk) -> Chunk:
        earlier = [*self._earlier.values()]
        requests = TABLES["requests"].records(
            len(earlier), **{name: [getattr(each, name) for each in earlier] for name in NUMBERS}
        )
        return msgspec.structs.replace(
            chunk,
            handle_of_row=self._handle_of_row.tobytes(),
            requests=requests + chunk.requests,
            request_ids=[*(each.request_id for each in earlier), *chunk.request_ids],
            keys=[*(each.key for each in earlier), *chunk.keys],
        )
