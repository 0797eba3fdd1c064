"""Moves outputs from the engine's socket into streams, on the event loop. Front end.

It holds no reference to the AsyncLLM, so that one can be collected while it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from tenonry.client.core_client import CoreClient
from tenonry.client.gate import Gate
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stat_manager import StatManager
from tenonry.client.stream import Completion
from tenonry.errors import EngineDeadError
from tenonry.messages import EngineCoreOutputs
from tenonry.stats import StatRecord

logger = logging.getLogger(__name__)
CHUNK_SIZE = 128  # requests worked on before other tasks of the loop get their turn
MAX_FRAMES_PER_TURN = 16
LAST_WORDS_S = 0.05
STOP_TIMEOUT_S = 1.0


class OutputHandler:
    """Listens from construction until `stop`. Any exception of its own ends every open request."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: CoreClient,
        outputs: OutputProcessor,
        stats: StatManager,
        gate: Gate,
    ) -> None:
        self.loop, self._client, self._outputs, self._stats, self._gate = loop, client, outputs, stats, gate
        self.stopped = False
        self._busy = False
        self._fd = client.output_fd
        loop.add_reader(self._fd, self._on_readable)
        loop.call_soon(self._on_readable)  # the descriptor is edge-triggered: something may be there already

    def _on_readable(self) -> None:
        if not self.stopped and not self._busy:
            self._guarded(self._turn)

    def _guarded(self, work: Callable[..., None], *args: Any) -> None:
        """Run a part of the handler; nobody else would hear of its exceptions."""
        try:
            work(*args)
        except Exception as error:
            logger.exception("the output handler failed")
            self.stop(EngineDeadError(f"the output handler failed: {error}"))

    def _turn(self) -> None:
        """Drain the socket, then work through the touched requests in chunks."""
        for _ in range(MAX_FRAMES_PER_TURN):
            outputs = self._client.receive()
            if outputs is None:
                break
            self._outputs.absorb(outputs)
            if outputs.scheduler_stats is not None:
                self._record(outputs)
        else:
            self.loop.call_soon(self._on_readable)
        self._flush(self._outputs.take_touched(), 0)

    def _flush(self, touched: list[Completion], start: int) -> None:
        if self.stopped:
            return
        end = start + CHUNK_SIZE
        aborts = self._outputs.flush(touched if start == 0 and len(touched) <= end else touched[start:end])
        if aborts:
            with contextlib.suppress(EngineDeadError):
                self._client.abort_requests(aborts)
        if end < len(touched):
            self._busy = True
            self.loop.call_soon(self._guarded, self._flush, touched, end)
        elif self._busy:
            self._busy = False
            self.loop.call_soon(self._on_readable)

    def _record(self, outputs: EngineCoreOutputs) -> None:
        if self._stats.enabled:
            record = StatRecord(
                engine_index=outputs.engine_index,
                time=time.monotonic(),
                scheduler=outputs.scheduler_stats,
                iteration=self._outputs.take_iteration(outputs.engine_index),
            )
            self._stats.record(record)

    def engine_died(self, index: int, reason: str) -> None:
        """From any thread: end the requests of an engine, once what it still managed to say has arrived."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self.loop.call_later, LAST_WORDS_S, self._bury, index, reason)

    def _bury(self, index: int, reason: str) -> None:
        aborts: list[int] = []
        if not self.stopped:
            with contextlib.suppress(Exception):
                while (outputs := self._client.receive()) is not None:
                    self._outputs.absorb(outputs)
                aborts = self._outputs.flush()
        lost = self._client.remove_engine(index, reason)
        if self._client.dead is not None:
            self.stop(EngineDeadError(f"the engine died: {reason}"))
            return
        others = self._outputs.fail(lost, EngineDeadError(f"the engine of this request died: {reason}"))
        self._client.abort_requests([*aborts, *others])

    def stop(self, error: Exception) -> None:
        """Listen no more; every open request ends with `error`. Idempotent, from any thread.

        When it returns the loop touches the sockets no more, unless something blocks the loop.
        """
        if self.stopped:
            return
        self.stopped = True
        if not self.loop.is_running() or _running_loop() is self.loop:
            self._finish(error)
            return
        finished = threading.Event()
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            self.loop.call_soon_threadsafe(self._finish, error, finished)
            finished.wait(STOP_TIMEOUT_S)

    def _finish(self, error: Exception, finished: threading.Event | None = None) -> None:
        with contextlib.suppress(EngineDeadError):
            self._client.abort_requests(self._outputs.live_handles())  # the engine need not go on for nobody
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.remove_reader(self._fd)
            self._outputs.fail_all(error)
            self._client.fail_calls(error)
            self._gate.open()
        if finished is not None:
            finished.set()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
