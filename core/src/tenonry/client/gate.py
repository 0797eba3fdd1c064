"""Who may come in: requests wait while the front end is paused, and are refused while it drains or is full."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator

from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stat_manager import StatManager
from tenonry.config import EngineConfig
from tenonry.errors import QueueFullError


class Gate:
    """Counts completions: those that run or wait in the engine, and those that are held before it.

    There is room for what all engines can run and `max_num_queued_reqs` more; each of `num_clients` front ends has an
    equal share of it.
    """

    def __init__(
        self, config: EngineConfig, outputs: OutputProcessor, stats: StatManager, num_engines: int, num_clients: int = 1
    ) -> None:
        self._max_num_seqs, self._queued, self._num_clients = (
            config.max_num_seqs,
            config.max_num_queued_reqs,
            num_clients,
        )
        self._outputs, self._stats = outputs, stats
        self._held = 0
        self.resize(num_engines)
        self._opened = asyncio.Event()
        self._opened.set()
        self.is_draining = False

    def resize(self, num_engines: int) -> None:
        """The number of engines changed."""
        self._capacity = (
            None if self._queued is None
            else math.ceil((self._max_num_seqs * num_engines + self._queued) / self._num_clients)
        )  # fmt: skip

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
