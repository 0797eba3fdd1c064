"""Fake streams and events of a CUDA device: each records the work that precedes its next one. Test process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any


class FakeStream:
    """`known`: work completed before the next work of this stream starts."""

    def __init__(self, device: Any = None) -> None:
        self.known: set[Any] = set()

    def run(self, work: Any) -> set[Any]:
        """Run work; returns the preceding work."""
        before = set(self.known)
        self.known.add(work)
        return before

    def wait_event(self, event: Any) -> None:
        self.known |= event.known

    def wait_stream(self, stream: FakeStream) -> None:
        self.known |= stream.known


class FakeCuda:
    """Replaces `torch.cuda`. `host`: work known to the host as completed; only synchronisation adds to it.

    Use: `for name in FakeCuda.NAMES: monkeypatch.setattr(torch.cuda, name, getattr(fake, name))`.
    """

    NAMES = ("Stream", "Event", "current_stream", "stream")
    Stream = FakeStream

    def __init__(self) -> None:
        self.compute = self.current = FakeStream()
        self.host: set[Any] = set()
        host = self.host

        class Event:
            """An event; synchronisation with it adds the recorded work to the host's."""

            def __init__(self) -> None:
                self.known: set[Any] = set()

            def record(self, stream: FakeStream) -> None:
                self.known = set(stream.known)

            def synchronize(self) -> None:
                host.update(self.known)

        self.Event = Event

    def current_stream(self, device: Any) -> FakeStream:
        """Return the stream selected by `stream`, or that of the kernels."""
        return self.current

    @contextlib.contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        """Select a stream for the block."""
        self.current = stream
        try:
            yield
        finally:
            self.current = self.compute
