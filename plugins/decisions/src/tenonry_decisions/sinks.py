"""Destinations of chunks: a file, and the memory of an engine. Engine process."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from tenonry.errors import ConfigError
from tenonry_decisions.frames import Chunk, Header, RequestFacts, column, pack


class FileSink:
    """Appends frames to a file, each as a whole; begins with `header`. Raises ConfigError if that fails."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.write(header)
        except OSError as error:
            raise ConfigError(
                f"decision_log={path} cannot be written: {error.strerror}; name another file"
            ) from None

    def write(self, frame: Header | Chunk) -> None:
        """Append a frame."""
        with self._path.open("ab", buffering=0) as file:
            file.write(pack(frame))


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
            facts.update((each.handle, each) for each in dropped.requests)
            for handle in column(dropped, "end_handle").tolist():
                facts.pop(handle, None)

    def frames(self) -> bytes:
        """The kept records as a file would have them; the first chunk names the requests that came before it."""
        parts = []
        for header in self._headers:
            parts.append(pack(header))
            earlier = [*self._earlier[header.source].values()]
            for chunk in self._chunks[header.source]:
                if earlier:
                    whole = {name: getattr(chunk, name) for name in chunk.__struct_fields__}
                    parts.append(pack(Chunk(**(whole | {"requests": earlier + chunk.requests}))))
                    earlier = []
                else:
                    parts.append(pack(chunk))
        return b"".join(parts)
