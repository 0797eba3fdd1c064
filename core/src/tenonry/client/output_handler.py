"""Moves outputs from the engine's socket into streams, on the event loop. Front end.

It holds no reference to the AsyncLLM, so that one can be collected while it listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading

from tenonry.client.core_client import CoreClient
from tenonry.client.gate import Gate
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.stat_manager import StatManager
from tenonry.errors import EngineDeadError
from tenonry.messages import EngineCoreOutputs
from tenonry.stats import SchedulerStats

logger = logging.getLogger(__name__)
CHUNK_SIZE = 128  # requests worked on before other tasks of the loop get their turn
MAX_FRAMES_PER_TURN = 16
LAST_WORDS_S = 0.05
STOP_TIMEOUT_S = 1.0


class OutputHandler:
    """Listens, on the running loop, from construction to `stop`. Any exception of its own ends every open request."""

    def __init__(
        self, client: CoreClient, outputs: OutputProcessor, stats: StatManager, gate: Gate
    ) -> None:
        self._client, self._outputs, self._stats, self._gate = client, outputs, stats, gate
        self.loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.stopped = False
        self._busy = False  # another turn is about to come
        self._fd = client.output_fd
        self.loop.add_reader(self._fd, self._on_readable)
        self.loop.call_soon(
            self._on_readable
        )  # the descriptor is edge-triggered: something may be there already

    def _on_readable(self) -> None:
        if not self._busy:
            self._turn()

    def _turn(self) -> None:
        """Work through one chunk of the touched requests; drain the socket when there are none left."""
        if self.stopped:
            return
        try:
            is_drained = not self._outputs.touched and self._drain()
            aborts = self._outputs.flush(CHUNK_SIZE)
            if aborts:
                with contextlib.suppress(EngineDeadError):
                    self._client.abort_requests(aborts)
        except Exception as error:
            logger.exception("the output handler failed")
            self._client.dead = f"the output handler failed: {error}"
            self.stop(EngineDeadError(self._client.dead))
            return
        self._busy = bool(self._outputs.touched) or not is_drained
        if self._busy:
            self.loop.call_soon(self._turn)

    def _drain(self) -> bool:
        """Take frames in; False if there may be more."""
        for _ in range(MAX_FRAMES_PER_TURN):
            outputs = self._client.receive()
            if outputs is None:
                return True
            self._outputs.absorb(outputs)
            if outputs.scheduler_stats is not None and self._stats.enabled:
                self._stats.observe(outputs, self._outputs.take_iteration(outputs.engine_index))
            if (
                outputs.prompt_logprobs
            ):  # as long to take in as many frames; a step has no more of them than its tokens
                break
        return False

    def engine_died(self, index: int, reason: str) -> None:
        """From any thread: end the requests of an engine, once what it still managed to say has arrived."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(
                self.loop.call_later, LAST_WORDS_S, self._bury, index, reason
            )

    def _bury(self, index: int, reason: str) -> None:
        aborts: list[int] = []
        with contextlib.suppress(Exception):
            while not self.stopped and (outputs := self._client.receive()) is not None:
                self._outputs.absorb(outputs)
            aborts = self._outputs.flush()
        lost = self._client.remove_engine(index, reason)
        if self._client.dead is not None:
            self.stop(EngineDeadError(f"the engine died: {reason}"))
        else:
            others = self._outputs.fail(
                lost, EngineDeadError(f"the engine of this request died: {reason}")
            )
            self._client.abort_requests([*aborts, *others])
        # Nothing that comes from this engine will bring the numbers of its requests, or say that it runs none.
        last = EngineCoreOutputs(engine_index=index, scheduler_stats=SchedulerStats())
        self._stats.observe(last, self._outputs.take_iteration(index))

    def stop(self, error: Exception) -> None:
        """Listen no more; every open request ends with `error`. Idempotent, from any thread.

        When it returns the loop touches the sockets no more, unless something blocks the loop.
        """
        if self.stopped:
            return
        self.stopped = True
        if not self.loop.is_running() or threading.get_ident() == self._thread:
            self._finish(error)
            return
        finished = threading.Event()
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            self.loop.call_soon_threadsafe(self._finish, error)
            self.loop.call_soon_threadsafe(finished.set)
            finished.wait(STOP_TIMEOUT_S)

    def _finish(self, error: Exception) -> None:
        with contextlib.suppress(EngineDeadError):
            self._client.abort_requests(
                self._outputs.live_handles()
            )  # the engine need not go on for nobody
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.remove_reader(self._fd)
            self._outputs.fail_all(error)
            self._client.fail_calls(error)
            self._gate.opened.set()
