"""The way of a request through a front end with engines in processes of their own. The user's event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import weakref
from collections.abc import AsyncIterator, Iterable
from typing import Any

from tenonry.client.engines import Engines, OwnedEngines
from tenonry.client.gate import Gate
from tenonry.client.input_processor import InputProcessor, is_long_text
from tenonry.client.output_handler import OutputHandler
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.start import build_io_processor
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError, TenonryError
from tenonry.info import EngineInfo
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


class FrontEnd:
    """What `AsyncLLM` is made of: it accepts, streams and ends requests, and starts and stops engines.

    `stat_loggers`: those in use, by name.
    """

    _closed = True  # until there is something to close

    def __init__(
        self,
        config: EngineConfig,
        *,
        stat_loggers: dict[str, StatLogger] | None = None,
        context: str = "library",
        engines: Engines | None = None,
    ) -> None:
        """`engines`: start none; use these, which bring their stat loggers."""
        self.config = config
        self._handler: OutputHandler | None = None
        self._scaling = asyncio.Lock()
        self._engines = engines = engines or OwnedEngines(config, stat_loggers, context)
        engines.on_death = functools.partial(_report_death, weakref.ref(self))
        self._client, self._stats, self.model = engines.client, engines.stats, engines.model
        self.stat_loggers = self._stats.loggers
        self.io_processor: IOProcessor | None = None
        self._closed = False
        try:
            self.io_processor = io = build_io_processor(config, engines.plan, self.model)
            is_plain = io is None or type(io).post_process is IOProcessor.post_process
            self._post_process = None if io is None or is_plain else io.post_process
            engines.start()
            self._inputs = InputProcessor(
                self.model, io, self.info.max_model_len, config.seed, engines.index
            )
            self._outputs = OutputProcessor(io, time.monotonic, log_stats=self._stats.enabled)
            self._gate = Gate(config, self._outputs, engines)
        except BaseException:
            self.shutdown()
            raise

    @property
    def info(self) -> EngineInfo:
        """What is known of the engines."""
        return self._engines.info

    # ------------------------------------------------------------------ requests
    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **fields: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as they come, until the last, whose `finished` is true.

        `fields`: priority, tags, cache_salt, data_parallel_rank, trace_headers, kv_transfer_params, add_special_tokens.
        Raises RequestError (invalid), QueueFullError (try later), EngineGenerateError (this request failed) or
        EngineDeadError. Cancelling or closing aborts the request.
        """
        stream = await self.add_request(prompt, sampling_params, request_id, **fields)
        try:
            while True:
                output = stream.take()
                if output is None:
                    await stream.wait()
                    continue
                if stream.error is not None and output.finished:
                    raise stream.error
                if self._post_process is not None:
                    output = self._post_process(output)
                yield output
                if output.finished:
                    return
        except (EngineDeadError, EngineGenerateError, RequestError):
            raise
        except Exception as error:
            raise EngineGenerateError(f"request {request_id} failed: {error}") from error
        finally:
            if (
                self._outputs.get(request_id) is stream
            ):  # nobody reads on: the caller left, or one completion failed
                self._abort([request_id])

    async def add_request(
        self, prompt: Any, params: SamplingParams, request_id: str, **fields: Any
    ) -> Stream:
        """Accept a request and send it to the engine; `generate` without the loop around it."""
        self._client.check_alive()
        self.listen()
        with self._gate.holding(params.n):
            process = functools.partial(self._inputs.process, prompt, params, request_id, **fields)
            processed, requests = (
                await asyncio.to_thread(process) if is_long_text(prompt, params) else process()
            )
            await self._gate.wait()
        self._client.check_alive()
        stream = self._outputs.add(processed, requests)
        try:
            self._client.add_requests(requests)
        except BaseException:
            self._abort([request_id])
            raise
        if self.config.log_requests:
            logger.info(
                "request %s: %d prompt tokens, %s", request_id, len(processed.token_ids), params
            )
        return stream

    def listen(self) -> None:
        """Begin to listen for outputs, on the loop that serves requests. The first request does it, too."""
        loop = asyncio.get_running_loop()
        if self._handler is None:
            self._handler = OutputHandler(self._client, self._outputs, self._stats, self._gate)
            for link in list(self._client.engines.values()):
                if link.dead:  # since before anybody listened
                    self._handler.engine_died(link.index, link.dead)
            self._engines.listen(loop, self._outputs.take_iterations)
        elif self._handler.loop is not loop:
            raise TenonryError("this AsyncLLM serves another event loop; use it from one loop only")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their streams finish with reason "abort". Unknown ids are ignored."""
        self._abort([request_id] if isinstance(request_id, str) else request_id)

    def _abort(self, request_ids: Iterable[str]) -> None:
        self._client.abort_requests(self._outputs.abort(request_ids))

    async def abort_all(self) -> None:
        """End every request with reason "abort"."""
        self._abort(self._outputs.request_ids())

    @property
    def num_unfinished_requests(self) -> int:
        return len(self._outputs)

    # ------------------------------------------------------------------ end, health
    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engine; open streams end with EngineDeadError. Idempotent, from any thread."""
        if self._closed:
            return
        self._closed = True
        self._client.dead = self._client.dead or "it was shut down"
        if self._handler is not None:
            self._handler.stop(EngineDeadError("the engine was shut down"))
        self._engines.shutdown(timeout)
        if self.io_processor is not None:
            self.io_processor.shutdown()

    def __del__(self) -> None:
        self.shutdown()

    @property
    def errored(self) -> bool:
        return self._client.dead is not None

    is_stopped = errored

    @property
    def is_running(self) -> bool:
        return self._handler is None or not self._handler.stopped

    @property
    def dead_error(self) -> EngineDeadError:
        return EngineDeadError(f"the engine is gone: {self._client.dead}")

    async def check_health(self) -> None:
        """Raise EngineDeadError if no request can be served."""
        self._client.check_alive()


def _report_death(reference: weakref.ref[FrontEnd], index: int, reason: str) -> None:
    """Any thread: an engine ended unasked."""
    engine = reference()
    if engine is None:
        return
    logger.error("the engine died: %s", reason)
    engine._client.engine_died(index, reason)  # noqa: SLF001 - our own class
    if engine._handler is not None:  # noqa: SLF001
        engine._handler.engine_died(index, reason)  # noqa: SLF001
