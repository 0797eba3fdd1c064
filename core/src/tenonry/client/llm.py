"""`LLM`: a blocking batch interface. One engine in the user's own process: no children, no signal handlers.

Parts of the engine are imported with the first `LLM`, not with this module.
"""

from __future__ import annotations

import contextlib
import itertools
import reprlib
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tenonry.client.delegations import BlockingDelegations
from tenonry.errors import ConfigError, EngineDeadError, EngineGenerateError, RequestError
from tenonry.outputs import CompletionOutput, RequestOutput
from tenonry.sampling_params import OutputKind, SamplingParams

if TYPE_CHECKING:
    from tenonry.config import EngineConfig
    from tenonry.interfaces.io_processor import ProcessedPrompt
    from tenonry.messages import EngineCoreRequest

Params = SamplingParams | Sequence[SamplingParams] | None


class LLM(BlockingDelegations):
    """Generates text for batches of prompts.

    `LLM(model="demo", max_num_seqs=64)`: keyword arguments are fields of EngineConfig. Use it as a context manager, or
    call `shutdown()`. Threads may share it: calls of `generate`, `chat` and methods built on them run one after
    another, with the same results as alone. Use AsyncLLM to batch requests of several callers.
    """

    def __init__(
        self, model: str | None = None, *, config: EngineConfig | None = None, **settings: Any
    ) -> None:
        from tenonry.client.call_sets import CallSets
        from tenonry.client.input_processor import InputProcessor
        from tenonry.client.io_calls import post_processor
        from tenonry.client.output_processor import OutputProcessor
        from tenonry.client.start import (
            announce,
            build_io_processor,
            engine_info,
            read_settings,
            resolve_front_end,
        )
        from tenonry.client.stat_manager import StatManager
        from tenonry.engine.build import build_engine

        if config is None:
            config = read_settings({"model": model, **settings})
        elif model is not None or settings:
            raise ConfigError("give either config= or single settings, not both")
        if config.data_parallel_size != 1:
            raise ConfigError(
                "LLM runs one engine; for data_parallel_size above 1 use AsyncLLM or `tenonry serve`"
            )
        self.config = config
        manager, plan, self.model = resolve_front_end(config, launcher=False)
        with contextlib.ExitStack() as parts:  # released again if construction fails
            self._stats = stats = StatManager(config, plan)
            parts.callback(stats.shutdown)
            self.io_processor = io = build_io_processor(
                config, plan, self.model, stats.submit, parts
            )
            self._post_process = post_processor(io)
            self.engine_core = core = build_engine(config, self.model, plan)
            parts.callback(core.shutdown)
            llm = weakref.proxy(self)
            self.calls = CallSets(config, plan, lambda _, each, __: each.blocking_half(llm, core))
            self.info = engine_info(config, self.model, plan, [core.facts()])
            self.input_processor = InputProcessor(config, plan, self.model, io, self.info)
            self.output_processor = OutputProcessor(
                io, config, time.monotonic, log_stats=stats.enabled
            )
            self._ids = itertools.count()
            self._lock = threading.RLock()
            self._dead: str | None = None
            stats.initialized(self.info)
            announce(manager, self.info)
            self._parts = parts.pop_all()

    # ------------------------------------------------------------------ generation
    def generate(
        self,
        prompts: Any,
        sampling_params: Params = None,
        *,
        use_tqdm: bool | None = None,
        priority: Sequence[int] | None = None,
        **fields: Any,
    ) -> list[RequestOutput]:
        """Complete prompts (texts, {"prompt": …} or {"prompt_token_ids": …}); one output each, in order.

        A request that fails ends with finish_reason "error" and `output.error`; the others are unaffected. An invalid
        prompt or parameter raises RequestError before anything runs. Without `sampling_params`, the defaults of the
        model's authors apply. `use_tqdm`: a progress bar; by default on a terminal. `fields`: as of
        `AsyncLLM.generate`; `adapter` and `lora_request` may also be a list with one entry per prompt, None for the
        model itself.
        """
        with self._lock:
            if self._dead is not None:
                raise EngineDeadError(f"the engine has stopped: {self._dead}")
            if held := self.engine_core.held:
                raise EngineGenerateError(f"the engine does not step: {held}")
            adapters = fields.pop("adapter", None)
            if (lora := fields.pop("lora_request", None)) is not None:
                adapters = self.calls["adapters"].requested(lora)
            prompts = _several(prompts)
            count = len(prompts)
            if sampling_params is None:
                sampling_params = SamplingParams(**self.model.default_sampling)
            prepared = []
            for prompt, sampling, rank, adapter in zip(
                prompts,
                _one_each("sampling_params", sampling_params, count),
                _one_each("priority", priority or 0, count),
                _one_each("adapter", adapters, count),
                strict=True,
            ):
                request_id = str(next(self._ids))
                self.input_processor.check_call(sampling, request_id)
                final = msgspec.structs.replace(sampling, output_kind=OutputKind.FINAL)
                prepared.append(
                    self.input_processor.process(
                        prompt, final, request_id, priority=rank, adapter=adapter, **fields
                    )
                )
            with _progress_bar(len(prepared), use_tqdm) as progress:
                return self._run(prepared, progress)

    def chat(
        self, messages: Any, sampling_params: Params = None, **kwargs: Any
    ) -> list[RequestOutput]:
        """Answer one conversation (a message, or a list of them) or several (a list of such lists).

        `kwargs`: options of `generate`, and of the IO processor's `render_chat`, such as `tools`.
        """
        from tenonry.client.input_processor import CALLER_FIELDS

        if self.io_processor is None:
            raise ConfigError("chat needs an IO processor, and none is loaded")
        names = kwargs.keys() & {*CALLER_FIELDS, "lora_request", "use_tqdm"}
        options = {name: kwargs.pop(name) for name in names}
        match messages:
            case {}:
                messages = [[messages]]
            case [{}, *_]:
                messages = [messages]
            case [*chats] if all(isinstance(chat, list | tuple) for chat in chats):
                pass
            case _:
                raise RequestError(
                    f"messages={reprlib.repr(messages)} must be a message, a list of messages, or a list of such lists",
                    "messages",
                )
        prompts = [self.io_processor.render_chat(chat, **kwargs) for chat in messages]
        return self.generate(prompts, sampling_params, **options)

    def _run(
        self,
        prepared: list[tuple[ProcessedPrompt, list[EngineCoreRequest]]],
        progress: Callable[[int], None],
    ) -> list[RequestOutput]:
        from tenonry.messages import EngineCoreOutputs

        try:
            streams = [self.output_processor.add(*processed) for processed in prepared]
            for _, requests in prepared:
                for request in requests:
                    refused = self.engine_core.add_request(request)
                    if refused is not None:
                        self.output_processor.absorb(EngineCoreOutputs(finished=[refused]))
            while left := len(self.output_processor):
                self._step()
                if len(self.output_processor) < left:
                    progress(len(streams) - len(self.output_processor))
        except BaseException:
            handles = self.output_processor.abort(self.output_processor.request_ids())
            if self._dead is None:
                self.engine_core.abort_requests(handles)
            raise
        while self.engine_core.has_work():  # workers free finished rows before the next call
            self._step()
        outputs = [stream.take() for stream in streams]
        return [self._finished(output) for output in outputs if output]

    def _finished(self, output: RequestOutput) -> RequestOutput:
        """Return the output after the IO processor's `post_process`; without its content if that failed."""
        if output.error or not self._post_process:
            return output
        try:
            return self._post_process(output)
        except (EngineGenerateError, RequestError) as error:
            failed = [
                CompletionOutput(each.index, text="", token_ids=[], finish_reason="error")
                for each in output.outputs
            ]
            return msgspec.structs.replace(output, outputs=failed, error=str(error))

    def _step(self) -> None:
        try:
            outputs_by_client, worked = self.engine_core.step()
        except Exception as error:
            self._dead = str(error)
            self.output_processor.fail(
                self.output_processor.live_handles(), EngineDeadError(self._dead)
            )
            raise
        self.engine_core.attach_stats(outputs_by_client, idle=not self.engine_core.has_work())
        for outputs in outputs_by_client.values():
            self.output_processor.absorb(outputs)
            if aborts := self.output_processor.flush():
                self.engine_core.abort_requests(aborts)
            if outputs.scheduler_stats is not None:
                self._stats.observe(
                    0, outputs.scheduler_stats, self.output_processor.take_iteration()
                )
        if not worked and self.engine_core.kv_connector is not None:
            time.sleep(0.001)  # a transfer is in flight

    # ------------------------------------------------------------------ the rest
    def shutdown(self) -> None:
        """Release the model and the threads. Idempotent."""
        with self._lock:
            self._dead = self._dead or "it was shut down"
            self._parts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _one_each(name: str, value: Any, count: int) -> Sequence[Any]:
    """One value per prompt: a sequence of `count` values, or the same value for all. Raises ConfigError."""
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ConfigError(
            f"{name} has {len(value)} values for {count} prompts; give one, or one each"
        )
    return value


def _several(prompts: Any) -> Sequence[Any]:
    """Return the prompts of a call, from a list or a single one. `read_prompt` rejects invalid ones."""
    import numpy as np

    match prompts:
        case [int(), *_] | np.ndarray(ndim=1):
            return [prompts]
        case [*_] | np.ndarray():
            return list(prompts)
    return [prompts]


def _progress_bar(total: int, show: bool | None) -> Any:
    from tenonry.plugin.discovery import installed
    from tenonry.plugin.kinds import PROGRESS_BARS
    from tenonry.plugin.manager import resolve_point

    if show or (show is None and sys.stderr.isatty() and installed(PROGRESS_BARS)):
        return resolve_point(PROGRESS_BARS, "default")[0](total)
    return contextlib.nullcontext(lambda _: None)
