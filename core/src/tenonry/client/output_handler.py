"""Moves outputs from the engines' socket into streams, on the event loop, and ends the streams of dead engines.
Front end.

It holds no reference to the AsyncLLM, so that one can be collected while its handler listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable
from typing import Any

from tenonry.client.admission import Admission
from tenonry.client.engine_link import EngineLink
from tenonry.client.engines import Engines
from tenonry.client.output_processor import OutputProcessor
from tenonry.config import EngineConfig
from tenonry.continuity.recovery import Recovery
from tenonry.errors import EngineDeadError, TenonryError
from tenonry.interfaces.launcher import Death
from tenonry.messages import CoordinatorFacts, EngineCoreOutputs
from tenonry.stats import SchedulerStats

logger = logging.getLogger(__name__)
CHUNK_SIZE = 128  # requests worked on before other tasks of the loop get their turn
MAX_FRAMES_PER_TURN = 16
DRAIN_GRACE_S = 0.05  # for outputs of a dead engine that are still in the socket
STOP_TIMEOUT_S = 1.0


class OutputHandler:
    """Listens on one event loop, from `listen` to `stop`. An exception of its own ends every open request.

    `recovery` takes the requests of dead engines where these are started again; elsewhere they end.
    """

    def __init__(
        self, engines: Engines, outputs: OutputProcessor, admission: Admission, recovery: Recovery
    ) -> None:
        self._engines = engines
        self._client = engines.client
        self._stats = engines.stats
        self._outputs = outputs
        self._admission = admission
        self._recovery = recovery
        recovery.on_end = self._end
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._fd = -1
        self._has_turn = False  # `_turn` is scheduled
        self.stopped = False

    def listen(self) -> None:
        """Listen on the running loop. Idempotent; raises TenonryError on any other loop than the first."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            raise TenonryError("this AsyncLLM serves another event loop; use it from one loop only")
        self._fd = self._client.output_fd
        self._thread = threading.get_ident()
        self._loop = loop
        loop.add_reader(self._fd, self._on_readable)
        # The descriptor is edge-triggered: something may be there already.
        loop.call_soon(self._on_readable)
        for link in list(self._client.engines.values()):
            if link.dead:  # since before the loop ran
                self._on_engine_dead(loop, link, link.index, link.dead)
        self._engines.listen(loop, self._outputs.take_iterations)

    # ------------------------------------------------------------------ outputs
    def _on_readable(self) -> None:
        if not self._has_turn:
            self._turn()

    def _turn(self) -> None:
        """Work through one chunk of the touched requests; drain the socket when there are none left."""
        if self.stopped or self._loop is None:
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
        self._has_turn = bool(self._outputs.touched) or not is_drained
        if self._has_turn:
            self._loop.call_soon(self._turn)

    def _drain(self) -> bool:
        """Take frames in; False if there may be more."""
        num_finished = 0
        for _ in range(MAX_FRAMES_PER_TURN):
            outputs = self._client.receive()
            if outputs is None:
                return True
            self._outputs.absorb(outputs)
            if outputs.scheduler_stats is not None and self._stats.enabled:
                self._stats.observe(outputs, self._outputs.take_iteration(outputs.engine_index))
            num_finished += len(outputs.finished)
            # Both take as long as many frames; a step has at most one of either per token.
            if outputs.prompt_logprobs or num_finished >= CHUNK_SIZE:
                break
        return False

    # ------------------------------------------------------------------ dead engines
    def died(self, index: int, death: Death) -> None:
        """From any thread: an engine ended unasked. Its streams end once outputs that it still sent have arrived."""
        logger.error("the engine died: %s", death)
        link = self._client.engines.get(index)
        self._client.engine_died(index, death)
        if self._loop is not None:
            self._on_engine_dead(self._loop, link, index, death)

    def _on_engine_dead(self, loop: asyncio.AbstractEventLoop, *death: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            loop.call_soon_threadsafe(loop.call_later, DRAIN_GRACE_S, self._fail_engine, *death)

    def _fail_engine(self, link: EngineLink | None, index: int, death: Death) -> None:
        if self._client.engines.get(index) is not link:  # another one has its place already
            return
        aborts = self._settle()
        lost = self._client.remove_engine(index, str(death))
        if self._client.dead is not None:
            self.stop(EngineDeadError(f"the engine died: {death}"))
        elif self._client.recovers:
            self._client.abort_requests(aborts)
            self._recovery.on_death(index, death, lost)
        else:
            error = EngineDeadError(f"the engine of this request died: {death}")
            siblings = self._outputs.fail(lost, error)
            self._client.abort_requests([*aborts, *siblings])
        # No frame of this engine will bring the numbers of its requests, or say that it runs none.
        last = EngineCoreOutputs(engine_index=index, scheduler_stats=SchedulerStats())
        self._stats.observe(last, self._outputs.take_iteration(index))

    def _settle(self) -> list[int]:
        """Take in all that engines have sent until now; returns handles to abort."""
        with contextlib.suppress(Exception):
            while not self.stopped and (outputs := self._client.receive()) is not None:
                self._outputs.absorb(outputs)
            return self._outputs.flush()
        return []

    def move(self, indexes: Iterable[int], coordinator: CoordinatorFacts | None) -> None:
        """Newcomers take the places of engines, whose streams go on there."""
        self._client.abort_requests(self._settle())
        for index, requests in self._client.take_over(indexes, coordinator).items():
            self._recovery.move(index, requests)

    def change(self, config: EngineConfig) -> None:
        """The engines run with this configuration from now on."""
        self._admission.config = config
        self._recovery.suspects.max_num_seqs = config.max_num_seqs

    def _end(self, reason: str) -> None:
        """An engine is given up. With the last one everything ends."""
        logger.error("the engine is given up: %s", reason)
        if not self._client.engines and not self._client.awaited:
            self._client.dead = reason
            self.stop(EngineDeadError(f"the engine died: {reason}"))

    # ------------------------------------------------------------------ end
    def stop(self, error: Exception) -> None:
        """Stop listening; every open request ends with `error`. Idempotent, from any thread.

        When it returns the loop uses the sockets no more, unless something blocks the loop.
        """
        if self.stopped:
            return
        self.stopped = True
        loop = self._loop
        if loop is None or not loop.is_running() or threading.get_ident() == self._thread:
            self._finish(error)
            return
        finished = threading.Event()
        with contextlib.suppress(RuntimeError):  # it was closed meanwhile
            loop.call_soon_threadsafe(self._finish, error)
            loop.call_soon_threadsafe(finished.set)
            finished.wait(STOP_TIMEOUT_S)

    def _finish(self, error: Exception) -> None:
        with contextlib.suppress(EngineDeadError):
            self._client.abort_requests(self._outputs.live_handles())
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            if self._loop is not None:
                self._loop.remove_reader(self._fd)
            self._outputs.fail_all(error)
            self._client.fail_calls(error)
            self._admission.resume()
