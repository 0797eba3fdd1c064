"""`AsyncLLM`: streams of many concurrent requests over an engine in a process of its own. The user's event loop."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from tenonry.client.engines import Engines
from tenonry.client.gate import Gate
from tenonry.client.input_processor import InputProcessor, is_long_text
from tenonry.client.output_handler import OutputHandler
from tenonry.client.output_processor import OutputProcessor
from tenonry.client.parts import announce, build_front_end, build_io_processor
from tenonry.client.pausing import Pausing
from tenonry.client.shared_engines import SharedEngines
from tenonry.client.stat_manager import StatManager
from tenonry.client.stream import Stream
from tenonry.config import EngineConfig
from tenonry.errors import (
    EngineDeadError,
    EngineGenerateError,
    RequestError,
    TenonryError,
)
from tenonry.interfaces.io_processor import IOProcessor
from tenonry.interfaces.stat_logger import StatLogger
from tenonry.outputs import RequestOutput
from tenonry.plugin_manager import PluginManager
from tenonry.request_limits import RequestLimits
from tenonry.sampling_params import SamplingParams

logger = logging.getLogger(__name__)


class AsyncLLM(Pausing):
    """Serves requests concurrently.

    The constructor blocks until the engine is ready; call it before the loop starts, or in a thread. `generate` is an
    async generator per request; closing it aborts the request. Every accepted request ends exactly once: with a finish
    reason, EngineGenerateError (this request alone) or EngineDeadError (all of them).
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        stat_loggers: dict[str, StatLogger] | None = None,
        context: str = "library",
        coordinated: bool = False,
        engines: SharedEngines | None = None,
    ) -> None:
        """`coordinated`: run a coordinator even where one front end with independent engines needs none.

        `engines`: start none; share these, whose owner also has the stat loggers.
        """
        if stat_loggers or config.stat_loggers:  # whoever brings a logger wants to hear something
            config = config.model_copy(update={"log_stats": True})
        self.config = config
        self._closed = False
        self._handler: OutputHandler | None = None
        self._scaling = asyncio.Lock()
        on_death = functools.partial(_report_death, weakref.ref(self))
        self._stats: StatManager
        self._engines: Engines | SharedEngines
        manager: PluginManager | None = None
        index, count = 0, 1
        if engines is None:
            manager, self.plan, self.model, io = build_front_end(config, launcher=True)
            self._stats = StatManager(config, self.plan, stat_loggers)
            self._engines = Engines(config, self.model, self.plan, on_death, context, coordinated=coordinated)
        else:
            self.plan, self.model, self._stats, self._engines = engines.plan, engines.model, engines.stats, engines
            index, count, engines.on_death = engines.index, engines.count, on_death
            io = build_io_processor(config, self.plan, self.model)
        self.io_processor = io
        looks_at_outputs = io is not None and type(io).post_process is not IOProcessor.post_process
        self._post_process = io.post_process if io is not None and looks_at_outputs else None
        try:
            self._engines.start()
            self._client, self.info = self._engines.client, self._engines.info
            limits = RequestLimits(self.info.max_model_len, self.model.vocab_size)
            self._inputs = InputProcessor(config, self.model, io, limits, index)
            self._outputs = OutputProcessor(io, time.monotonic, log_stats=self._stats.enabled)
            self._gate = Gate(config, self._outputs, self._stats, len(self.info.engine_indexes), count)
            self._stats.initialized(self.info)
            if manager is not None:
                announce(manager, self.info)
        except BaseException:
            self.shutdown()
            raise

    @classmethod
    def from_config(cls, config: EngineConfig, **options: Any) -> AsyncLLM:
        """The same as the constructor."""
        return cls(config, **options)

    # ------------------------------------------------------------------ requests
    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        **fields: Any,
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
        except (asyncio.CancelledError, GeneratorExit):
            self._abort([stream.request_id])
            raise
        except (EngineDeadError, RequestError):
            raise
        except EngineGenerateError:
            self._abort([stream.request_id])  # the other completions of the same request
            raise
        except Exception as error:
            self._abort([stream.request_id])
            raise EngineGenerateError(f"request {request_id} failed: {error}") from error

    async def add_request(self, prompt: Any, params: SamplingParams, request_id: str, **fields: Any) -> Stream:
        """Accept a request and send it to the engine; `generate` without the loop around it."""
        self._check_alive()
        self.listen()
        with self._gate.holding(params.n):
            if is_long_text(prompt):
                process = asyncio.to_thread(self._inputs.process, prompt, params, request_id, **fields)
                processed, requests = await process
            else:
                processed, requests = self._inputs.process(prompt, params, request_id, **fields)
            await self._gate.wait()
        self._check_alive()
        stream = self._outputs.add(processed, requests)
        try:
            self._client.add_requests(requests)
        except BaseException:
            self._abort([request_id])
            raise
        if self.config.log_requests:
            logger.info("request %s: %d prompt tokens, %s", request_id, len(processed.token_ids), params)
        return stream

    def listen(self) -> None:
        """Begin to listen for outputs, on the loop that serves requests. The first request does it, too."""
        loop = asyncio.get_running_loop()
        if self._handler is None:
            self._handler = OutputHandler(loop, self._client, self._outputs, self._stats, self._gate)
            for link in list(self._client.engines.values()):
                if link.dead:  # since before anybody listened
                    self._handler.engine_died(link.index, link.dead)
            if isinstance(self._engines, SharedEngines):
                self._engines.listen(loop, self._outputs.take_iterations)
        elif self._handler.loop is not loop:
            raise TenonryError("this AsyncLLM serves another event loop; use it from one loop only")

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their streams finish with reason "abort". Unknown ids are ignored."""
        self._abort([request_id] if isinstance(request_id, str) else list(request_id))

    def _abort(self, request_ids: Sequence[str]) -> None:
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
        if getattr(self, "_closed", True):  # or the constructor never came to anything
            return
        self._closed = True
        if self._handler is not None:
            self._handler.stop(EngineDeadError("the engine was shut down"))
        engines, stats, io = (getattr(self, name, None) for name in ("_engines", "_stats", "io_processor"))
        if engines is not None:
            engines.shutdown(timeout)
        if stats is not None:
            stats.shutdown()
        if io is not None:
            io.shutdown()

    def __del__(self) -> None:
        self.shutdown()

    @property
    def errored(self) -> bool:
        return self._closed or self._client.dead is not None or not self.is_running

    is_stopped = errored

    @property
    def is_running(self) -> bool:
        return self._handler is None or not self._handler.stopped

    @property
    def dead_error(self) -> EngineDeadError:
        return EngineDeadError(f"the engine is gone: {self._client.dead or 'it was shut down'}")

    async def check_health(self) -> None:
        """Raise EngineDeadError if no request can be served."""
        if self.errored:
            raise self.dead_error

    def _check_alive(self) -> None:
        if self.errored:
            raise self.dead_error

    @property
    def engine_pids(self) -> dict[str, int]:
        """Engine processes by name."""
        return {name: pid for name, pid in self._engines.pids().items() if name.startswith("engine ")}

    # ------------------------------------------------------------------ calls to the engine
    async def _call(self, method: str, *args: Any) -> list[Any]:
        self._check_alive()
        self.listen()
        return await self._client.call(method, *args)

    # ------------------------------------------------------------------ more engines, or fewer
    async def scale(self, size: int, drain_timeout: float = 300.0) -> None:
        """Go on with `size` engines. New ones join; ones that leave finish their requests first.

        Raises TimeoutError, and keeps them, if they still have requests after `drain_timeout` seconds. The same size
        changes nothing.
        """
        self._check_alive()
        self.listen()
        async with self._scaling:
            await self._engines.scale(size, drain_timeout)
            self.info = self._engines.info
            self._gate.resize(len(self.info.engine_indexes))
            self._stats.initialized(self.info)

    scale_elastic_ep = scale

    def _tell_loggers(self, method: str, *args: Any) -> None:
        self._stats.submit(method, *args)

    # ------------------------------------------------------------------ the rest
    @property
    def stat_loggers(self) -> dict[str, StatLogger]:
        """Stat loggers by name."""
        return self._stats.loggers

    async def do_log_stats(self) -> None:
        """Make the stat loggers report now."""
        self._stats.submit("log")

    async def render_metrics(self) -> tuple[bytes, str] | None:
        """What the first stat logger that can render shows, and its content type; None if there is none."""
        return await self._stats.render()

    async def is_tracing_enabled(self) -> bool:
        return False

    def get_tokenizer(self) -> Any:
        """The tokenizer. Raises ValueError if none is loaded."""
        if self.io_processor is None:
            raise ValueError("no tokenizer is loaded (skip_tokenizer_init or no io_processor)")
        return self.io_processor.get_tokenizer()


def _report_death(reference: weakref.ref[AsyncLLM], index: int, reason: str) -> None:
    """Any thread: an engine ended unasked."""
    engine = reference()
    if engine is None:
        return
    logger.error("the engine died: %s", reason)
    engine._engines.client.engine_died(index, reason)  # noqa: SLF001 - our own class
    if engine._handler is not None:  # noqa: SLF001
        engine._handler.engine_died(index, reason)  # noqa: SLF001
