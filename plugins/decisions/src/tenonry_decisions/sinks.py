"""Destinations of chunks: a file, and the memory of an engine. Engine process."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections import deque
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path

import msgspec

from tenonry.errors import ConfigError
from tenonry_decisions.frames import (
    Chunk,
    Header,
    RequestFacts,
    end_of_frames,
    facts_of,
    pack,
    table,
    with_earlier,
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
        self._headers: list[Header] = []
        self._chunks: dict[str, deque[Chunk]] = {}
        self._earlier: dict[str, dict[int, RequestFacts]] = {}

    def begin(self, header: Header) -> None:
        """Expect the chunks of one more source."""
        self._headers.append(header)
        self._chunks[header.source] = deque()
        self._earlier[header.source] = {}

    def write(self, chunk: Chunk) -> None:
        """Keep a chunk, and drop the oldest ones of its source that are not needed for `num_steps`."""
        chunks = self._chunks[chunk.source]
        chunks.append(chunk)
        kept = sum(each.num_steps for each in chunks)
        while kept - chunks[0].num_steps >= self._num_steps:
            dropped = chunks.popleft()
            kept -= dropped.num_steps
            facts = self._earlier[chunk.source]
            facts.update((each.handle, each) for each in facts_of(dropped))
            for handle in table(dropped, "ends")["handle"].tolist():
                facts.pop(handle, None)

    def frames(self) -> bytes:
        """The kept records as a file would have them; the first chunk names the requests that came before it."""
        parts: list[bytes] = []
        for header in self._headers:
            chunks = [*self._chunks[header.source]]
            earlier = [*self._earlier[header.source].values()]
            if earlier:
                chunks[0] = with_earlier(chunks[0], earlier)
            parts += [pack(header), *map(pack, chunks)]
        return b"".join(parts)
