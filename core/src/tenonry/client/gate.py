"""Who may come in: requests wait while the front end is paused, and are refused while it drains or is full."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator

from tenonry.client.engines import Engines
from tenonry.client.output_processor import OutputProcessor
from tenonry.config import EngineConfig
from tenonry.errors import DrainingError, QueueFullError, RequestError


class Gate:
    """Counts completions: those that run or wait in the engine, and those that are held before it.

    `held` counts those that are on their way in. `opened` is set while nobody holds requests back, and when the engine
    is gone, so that those who wait hear of it.
    """

    def __init__(self, config: EngineConfig, outputs: OutputProcessor, engines: Engines) -> None:
        self._config, self._outputs, self._stats, self._engines = (
            config,
            outputs,
            engines.stats,
            engines,
        )
        self.held = 0
        self.opened = asyncio.Event()
        self.opened.set()
        self.is_draining = False

    @property
    def capacity(self) -> float:
        """Room for what all engines can run and `max_num_queued_reqs` more, of which each front end has its share."""
        queued, engines = self._config.max_num_queued_reqs, self._engines
        if queued is None:
            return math.inf
        return math.ceil(
            (self._config.max_num_seqs * len(engines.info.engine_indexes) + queued) / engines.count
        )

    @contextlib.contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """Room for `count` completions until they are with the output processor.

        Raises QueueFullError, DrainingError, or RequestError for more than will ever have room. Stat loggers hear of
        those that are refused here, and of those that turn out to be invalid on their way in.
        """
        if self.is_draining:
            self._stats.submit("record_rejection", "draining")
            raise DrainingError(
                "the server is shutting down and accepts no new requests", retry_after_s=5.0
            )
        inside, capacity = self._outputs.num_completions + self.held, self.capacity
        if count > capacity:
            self._stats.submit("record_rejection", "invalid")
            raise RequestError(
                f"n={count}: there is room for {capacity} sequences in all; lower n", "n"
            )
        if inside + count > capacity:
            self._stats.submit("record_rejection", "queue_full")
            raise QueueFullError(
                f"{inside} sequences run or wait, the request brings {count}, and there is room for {capacity} "
                f"with max_num_queued_reqs={self._config.max_num_queued_reqs}; try again later"
            )
        self.held += count
        try:
            yield
        except RequestError:
            self._stats.submit("record_rejection", "invalid")
            raise
        finally:
            self.held -= count

    async def wait(self) -> None:
        """Until the gate is open, which it may not be any more when its news arrive."""
        while not self.opened.is_set():
            await self.opened.wait()
