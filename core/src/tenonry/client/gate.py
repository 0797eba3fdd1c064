"""Who may come in: requests wait while the front end is paused, and are refused while it drains or is full."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError


class Gate:
    """Counts completions: those that run or wait in the engine, and those that are held before it."""

    def __init__(self, config: EngineConfig, outputs: OutputProcessor, stats: StatManager) -> None:
        queued = config.max_num_queued_reqs
        self._capacity = None if queued is None else config.max_num_seqs + queued
        self._queued, self._outputs, self._stats = queued, outputs, stats
        self._held = 0
        self._opened = asyncio.Event()
        self._opened.set()
        self.is_draining = False

    @property
    def is_open(self) -> bool:
        return self._opened.is_set()

    def open(self) -> None:
        """Let those who wait go on; also when the engine is gone, so that they hear of it."""
        self._opened.set()

    def close(self) -> None:
        """Hold new requests back."""
        self._opened.clear()

    @contextlib.contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Room for `count` completions until they are with the output processor. Raises QueueFullError."""
        self._check(count)
        self._held += count
        try:
            yield
        finally:
            self._held -= count

    async def wait(self) -> None:
        """Until the gate is open."""
        while not self._opened.is_set():
            await self._opened.wait()

    def _check(self, count: int) -> None:
        if self.is_draining:
            self._stats.submit("record_rejection", "draining")
            raise QueueFullError("the server is shutting down and accepts no new requests", retry_after_s=5.0)
        inside = self._outputs.num_completions + self._held
        if self._capacity is not None and inside + count > self._capacity:
            self._stats.submit("record_rejection", "queue_full")
            raise QueueFullError(
                f"{inside} sequences run or wait, the request brings {count}, and there is room for {self._capacity} "
                f"with max_num_queued_reqs={self._queued}; try again later"
            )
