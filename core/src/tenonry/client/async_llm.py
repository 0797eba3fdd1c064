"""`AsyncLLM`: streams of many concurrent requests over engines in separate processes. The user's event loop.

Parts of the engines are imported with the first `AsyncLLM`, not with this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any

from tenonry.client.delegations import Delegations
from tenonry.errors import EngineDeadError, EngineGenerateError, RequestError
from tenonry.outputs import RequestOutput
from tenonry.sampling_params import SamplingParams

if TYPE_CHECKING:
    from tenonry.client.engines import Engines
    from tenonry.client.stream import Stream
    from tenonry.config import EngineConfig
    from tenonry.info import EngineInfo
    from tenonry.interfaces.stat_logger import StatLogger


class AsyncLLM(Delegations):
    """Serves concurrent requests and forwards calls to its engines: caches, sleep, adapters, profiles.

    The constructor blocks until the engine is ready; call it before the loop starts, or in a thread. `generate` is an
    async generator per request; closing it aborts the request. Every accepted request ends exactly once: with a finish
    reason, EngineGenerateError (this request alone) or EngineDeadError. The engine recovery
    (`tenonry.interfaces.recovery`) resumes or ends the streams of a dead engine. A call waits for the results of all
    engines; a call that the worker does not declare raises EngineGenerateError with the engine's message.

    `stat_loggers`: active stat loggers by name. `submit("record_extra", record)` passes a record to each, from any
    thread.
    """

    _closed = True  # until the constructor has resources to release

    def __init__(
        self,
        config: EngineConfig,
        *,
        stat_loggers: dict[str, StatLogger] | None = None,
        context: str = "library",
        engines: Engines | None = None,
    ) -> None:
        """`engines`: existing engines with their stat loggers, used instead of new ones."""
        from tenonry.client.engine_calls import EngineCalls
        from tenonry.client.engine_listener import EngineListener
        from tenonry.client.engines import OwnedEngines
        from tenonry.client.input_processor import InputProcessor
        from tenonry.client.io_calls import post_processor
        from tenonry.client.output_handler import OutputHandler
        from tenonry.client.start import build_io_processor

        self.engines = engines = engines or OwnedEngines(config, stat_loggers, context)
        self.engine_core, self._stats, self.model = engines.client, engines.stats, engines.model
        self.submit = engines.stats.submit
        self.stat_loggers = engines.stats.loggers
        with contextlib.ExitStack() as built:  # released again if construction fails
            built.callback(engines.shutdown)
            self.io_processor = io = build_io_processor(
                config, engines.plan, self.model, self.submit, built
            )
            self._post_process = post_processor(io)
            self._handler = handler = OutputHandler(config, engines, io)
            self.output_processor = handler.outputs
            self.admission = handler.admission
            self.events = EngineListener(self, config, handler, io)
            self.calls = self.events.calls
            self.recovery = self.events.recovery
            self.engine_calls = EngineCalls(self.engine_core, handler, self.recovery)
            built.callback(self.recovery.shutdown)
            engines.start(self.events)
            self.input_processor = InputProcessor(
                config, engines.plan, self.model, io, self.info, engines.index
            )
            built.pop_all()
        self._closed = False

    @classmethod
    def from_config(cls, config: EngineConfig, **options: Any) -> AsyncLLM:
        """Construct from a configuration."""
        return cls(config, **options)

    # ------------------------------------------------------------------ requests
    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **fields: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs until the last one, whose `finished` is true.

        `fields`: priority, tags, cache_salt, data_parallel_rank, trace_headers, kv_transfer_params, add_special_tokens,
        tokenization_kwargs (further fields of the prompt, such as truncate_prompt_tokens), adapter or lora_request,
        prompt_text (where the prompt is an EngineCoreRequest), arrival_time (seconds since 1970, for statistics and
        policy `priority`). Raises TypeError (no such field), RequestError (invalid), QueueFullError (try later),
        EngineGenerateError (this request failed) or EngineDeadError. Cancelling or closing aborts the request.
        """
        stream = await self.add_request(prompt, sampling_params, request_id, **fields)
        try:
            while True:
                output = stream.take()
                if not output:
                    await stream.wait()
                    continue
                if stream.error and output.finished:
                    raise stream.error
                yield self._post_process(output) if self._post_process else output
                if output.finished:
                    return
        except (EngineDeadError, EngineGenerateError, RequestError) as error:
            stream.error = error  # the reason, if the stream is still open
            raise
        except Exception as error:
            stream.error = EngineGenerateError(str(error), request_id=request_id)
            raise stream.error from error
        finally:
            # The caller left, or one completion failed.
            if self.output_processor.get(request_id) is stream:
                self._abort([request_id])

    async def add_request(
        self, prompt: Any, params: SamplingParams, request_id: str, **fields: Any
    ) -> Stream:
        """Accept a request and send it to the engine, without iterating over its outputs."""
        self.input_processor.check_call(params, request_id)
        if (lora := fields.pop("lora_request", None)) is not None:
            fields["adapter"] = await self.calls["adapters"].requested(lora)
        with self.admission.admit(request_id, params.n) as ticket:
            self._handler.listen()
            num_chars = self.input_processor.num_text_chars(prompt, params)
            await self.admission.turn(num_chars)
            processed, requests = await self.input_processor.prepare(
                num_chars, prompt, params, request_id, **fields
            )
            await self.admission.wait(ticket)
            engine = self.engine_core.choose(requests[0])
            stream = self.output_processor.add(processed, requests)
        if ticket.is_aborted:
            self.output_processor.abort([request_id])
            return stream
        try:
            self.events.send_to(engine, requests)
        except Exception as error:
            self.events.fail([request.handle for request in requests], error)
            raise
        return stream

    def check_capacity(self, count: int = 1) -> None:
        """Raise QueueFullError or DrainingError if `count` completions would be rejected now."""
        self.admission.check_capacity(count)

    def listen(self) -> None:
        """Receive outputs on the running loop, which serves all requests. Called by the first request as well."""
        self._handler.listen()

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests; their streams finish with reason "abort". Unknown ids are ignored."""
        self._abort([request_id] if isinstance(request_id, str) else request_id)

    def _abort(self, request_ids: Iterable[str]) -> None:
        request_ids = list(request_ids)
        for request_id in request_ids:
            self.admission.abort(request_id)
        self.engine_core.abort_requests(self.output_processor.abort(request_ids))

    async def abort_all(self) -> None:
        """End every request with reason "abort"."""
        request_ids = self.output_processor.request_ids()
        size = self.config.output_chunk_size
        for start in range(0, len(request_ids), size):
            self._abort(request_ids[start : start + size])
            await asyncio.sleep(0)

    @property
    def num_unfinished_requests(self) -> int:
        return len(self.output_processor)

    # ------------------------------------------------------------------ pausing
    @property
    def is_paused(self) -> bool:
        return self.admission.is_paused

    async def pause_generation(
        self,
        *,
        wait_for_inflight_requests: bool = False,
        clear_cache: bool = True,
        keep: bool = False,
    ) -> None:
        """Queue new requests. Running ones are aborted, awaited, or, with `keep`, suspended; then the caches are
        cleared unless kept. Idempotent.
        """
        if keep:
            await self.calls["operations"].hold()
        self.admission.pause()
        if keep:
            return
        if not wait_for_inflight_requests:
            await self.abort_all()
        await self.admission.wait_until_empty()
        if clear_cache:
            await self.reset_prefix_cache()
            await self.reset_mm_cache()

    async def resume_generation(self) -> None:
        """Admit queued requests and resume suspended ones."""
        self.admission.resume()
        if "operations" in self.calls:
            await self.calls["operations"].release()

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109 - the word that callers know
        """Reject new requests and wait for running ones; False if some still run after `timeout` seconds."""
        return await self.admission.drain(timeout)

    async def wait_for_requests_to_drain(self, drain_timeout: float = 300.0) -> None:
        """Wait until no front end of the engines has a request. Raises TimeoutError after `drain_timeout` seconds, or
        EngineDeadError.
        """
        deadline = time.monotonic() + drain_timeout
        left = 1
        while left:
            patience_s = max(0.0, deadline - time.monotonic())
            left = await self.events.drained(patience_s)
            self.engine_core.check_alive()
            left += await self.engines.ask_others("drained", patience_s)
            if left and time.monotonic() > deadline:
                raise TimeoutError(f"{left} requests still run after {drain_timeout:g} s")

    async def reset_mm_cache(self) -> None:
        """Drop processed images and other media: first in all front ends, then in the engines."""
        self.events.forget_media()
        await self.engines.ask_others("forget_media")
        await self.engine_calls.call("reset_mm_cache")

    # ------------------------------------------------------------------ engines
    @property
    def info(self) -> EngineInfo:
        """Facts of the running engines."""
        return self.engines.info

    @property
    def engine_pids(self) -> dict[str, int]:
        """Process ids of engines by name."""
        from tenonry.interfaces.launcher import engine_name

        pids = self.engines.pids()
        names = map(engine_name, sorted(self.engine_core.engines))
        return {name: pids[name] for name in names if name in pids}

    async def scale(self, size: int, drain_timeout: float = 300.0) -> None:
        """Change the number of engines to `size`. Removed engines first finish their requests.

        Raises TimeoutError, and keeps the engines, if requests still run after `drain_timeout` seconds. An equal size
        has no effect.
        """
        self.engine_core.check_alive()
        self._handler.listen()
        async with self.events.lock:
            await self.calls["scaling"].scale(
                self.engines, size, drain_timeout, self.recovery.replace
            )

    async def replace_engines(self, **changes: Any) -> None:
        """Replace the engines by ones with other settings, such as `scheduler="my_pkg:Mine"`, or newer versions of
        plugins.

        Each new engine starts alongside the running one and resumes its streams token for token; both occupy memory for
        a moment. Raises ConfigError (a setting that cannot change), PluginError, LaunchError (failed start),
        Unsupported (a layout without replacement) or EngineGenerateError; the running engines then continue.
        """
        self.engine_core.check_alive()
        self._handler.listen()
        await asyncio.shield(self._replace(changes))

    async def _replace(self, changes: dict[str, Any]) -> None:
        async with self.events.lock:
            await self.recovery.replace(changes)

    # ------------------------------------------------------------------ facts
    @property
    def config(self) -> EngineConfig:
        """Configuration of the running engines."""
        return self.admission.config

    async def do_log_stats(self) -> None:
        """Call `log` of all stat loggers now."""
        self.submit("log")

    async def render_metrics(self) -> tuple[bytes, str] | None:
        """Return the page of the first stat logger that renders one, and its content type; None without one."""
        return await self._stats.render()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """Return the supported tasks: "generate", or tasks of PoolingParams."""
        return tuple(self.info.tasks) or ("generate",)

    async def is_tracing_enabled(self) -> bool:
        """Return True if a stat logger joins requests to their callers' traces (`trace_headers`)."""
        return self._stats.traces

    # ------------------------------------------------------------------ health, end
    async def check_health(self) -> None:
        """Raise EngineDeadError if no request can be served, or an engine's executor fails its `check_health`.

        An engine without a response within `engine_calls.HEALTH_TIMEOUT_S` seconds is unhealthy, unless it runs another
        call of this front end.
        """
        await self.engine_calls.check_health()

    @property
    def errored(self) -> bool:
        return self.engine_core.dead is not None

    is_stopped = errored

    @property
    def is_serving(self) -> bool:
        """True if an engine accepts requests. During the restart of a dead one, requests wait."""
        return self.engine_core.dead is None and bool(self.engine_core.able)

    @property
    def is_running(self) -> bool:
        return not self._handler.stopped

    @property
    def dead_error(self) -> EngineDeadError:
        return EngineDeadError(f"the engine has stopped: {self.engine_core.dead}")

    def shutdown(self, timeout: float = 5.0) -> None:
        """Stop the engines; open streams end with EngineDeadError. Idempotent, from any thread."""
        if self._closed:
            return
        self._closed = True
        self.engine_core.dead = self.engine_core.dead or "it was shut down"
        self._handler.stop(EngineDeadError("the engine was shut down"))
        self.recovery.shutdown()
        self.engines.shutdown(timeout)
        if self.io_processor is not None:
            self.io_processor.shutdown()

    def __del__(self) -> None:
        self.shutdown()
