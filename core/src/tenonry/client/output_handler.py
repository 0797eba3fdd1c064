"""Moves outputs from the engines' socket into streams, on the event loop. Front end.

It holds no reference to the AsyncLLM, which can be collected while its handler listens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tenonry.client.admission import Admission
from tenonry.client.engines import Engines
from tenonry.client.output_processor import OutputProcessor
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, TenonryError
from tenonry.interfaces.io_processor import IOProcessor

logger = logging.getLogger(__name__)
MAX_FRAMES_PER_TURN = 16
STOP_TIMEOUT_S = 1.0


class OutputHandler:
    """Listens on one event loop, from `listen` to `stop`. An internal exception ends every open request.

    `outputs`: open requests; `admission`: open and unsent requests.
    """

    def __init__(self, config: EngineConfig, engines: Engines, io: IOProcessor | None) -> None:
        self.engines = engines
        self._client = engines.client
        self._stats = engines.stats
        self.admission = Admission(config, engines)
        self.outputs = OutputProcessor(
            io, config, time.monotonic, log_stats=engines.stats.enabled, on_end=self.admission.end
        )
        self._chunk_size = config.output_chunk_size
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._fd = -1
        self._has_turn = False  # `_turn` is scheduled
        self._posted: queue.SimpleQueue[tuple[float, Callable[..., None], Any]] = (
            queue.SimpleQueue()
        )
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
        # The descriptor is edge-triggered and may be readable already.
        loop.call_soon(self._on_readable)
        loop.call_soon(self._take_posted, loop)
        self.engines.listen(loop, self.outputs.take_iterations)

    # ------------------------------------------------------------------ outputs
    def _on_readable(self) -> None:
        if not self._has_turn:
            self._turn()

    def _turn(self) -> None:
        """Process one chunk of the touched requests; drain the socket when none are left."""
        if self.stopped or self._loop is None:
            return
        try:
            is_drained = not self.outputs.touched and self._drain()
            aborts = self.outputs.flush(self._chunk_size)
            if aborts:
                with contextlib.suppress(EngineDeadError):
                    self._client.abort_requests(aborts)
        except Exception as error:
            logger.exception("the output handler failed")
            self._client.dead = f"the output handler failed: {error}"
            self.stop(EngineDeadError(self._client.dead))
            return
        self._has_turn = bool(self.outputs.touched) or not is_drained
        if self._has_turn:
            self._loop.call_soon(self._turn)

    def _drain(self) -> bool:
        """Receive frames; False if there may be more."""
        num_finished = 0
        for _ in range(MAX_FRAMES_PER_TURN):
            outputs = self._client.receive()
            if outputs is None:
                return True
            self.outputs.absorb(outputs)
            if outputs.scheduler_stats is not None:
                self._stats.observe(
                    outputs.engine_index,
                    outputs.scheduler_stats,
                    self.outputs.take_iteration(outputs.engine_index),
                )
            num_finished += len(outputs.finished)
            # Both take as long as many frames; a step has at most one of either per token.
            if outputs.prompt_logprobs or num_finished >= self._chunk_size:
                break
        return False

    def settle(self) -> list[int]:
        """Process everything that engines have sent so far; returns handles to abort."""
        try:
            while not self.stopped and (outputs := self._client.receive()) is not None:
                self.outputs.absorb(outputs)
            return self.outputs.flush()
        except Exception:  # streams of the dead engine end in any case
            logger.exception("outputs that had arrived are lost")
            return []

    # ------------------------------------------------------------------ other work
    def post(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` on the loop after a delay, or once `listen` was called. From any thread."""
        self._posted.put((delay_s, callback, args))
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
                self._loop.call_soon_threadsafe(self._take_posted, self._loop)

    def _take_posted(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._posted.empty():
            delay_s, callback, args = self._posted.get()
            loop.call_later(delay_s, callback, *args)

    # ------------------------------------------------------------------ end
    def stop(self, error: Exception) -> None:
        """Stop listening; every open request ends with `error`. Idempotent, from any thread.

        On return the loop does not use the sockets any more, unless it is blocked.
        """
        if self.stopped:
            return
        self.stopped = True
        loop = self._loop
        if loop is None or not loop.is_running() or threading.get_ident() == self._thread:
            self._finish(error)
            return
        finished = threading.Event()
        with contextlib.suppress(RuntimeError):  # closed concurrently
            loop.call_soon_threadsafe(self._finish, error)
            loop.call_soon_threadsafe(finished.set)
            finished.wait(STOP_TIMEOUT_S)

    def _finish(self, error: Exception) -> None:
        with contextlib.suppress(EngineDeadError):
            self._client.abort_requests(self.outputs.live_handles())
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            if self._loop is not None:
                self._loop.remove_reader(self._fd)
            self.outputs.fail(self.outputs.live_handles(), error)
            self._client.fail_calls(error)
            self.admission.resume()
