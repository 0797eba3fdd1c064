"""A fake engine with the surface of AsyncLLM: one token per character, a scripted answer, faults on demand."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import DrainingError, EngineDeadError, RequestError, Unsupported
from tenonry.info import EngineInfo, ModelInfo, PluginRecord
from tenonry.interfaces.io_processor import (
    IOProcessor,
    IOProcessorContext,
    ProcessedPrompt,
    Prompt,
    TokenPrompt,
    read_prompt,
)
from tenonry.outputs import CompletionOutput, Logprob, PoolingOutput, RequestOutput
from tenonry.sampling_params import OutputKind, PoolingParams, SamplingParams

MODEL = ModelInfo(
    name="fake", path="/nowhere", architecture="Fake", max_model_len=100, vocab_size=2**20
)
ANSWER = "Hello there, wörld."


class CharacterIO(IOProcessor):
    """A token is a character; a chat is `role: content` lines."""

    has_template = True

    def process_prompt(
        self, prompt: Prompt, params: SamplingParams, *, add_special_tokens: bool = True
    ):
        if isinstance(prompt, TokenPrompt):
            return ProcessedPrompt(token_ids=prompt.token_ids)
        add_special_tokens = prompt.options.get("add_special_tokens", add_special_tokens)
        ids = self.encode(prompt.text, add_special_tokens=add_special_tokens)
        return ProcessedPrompt(token_ids=np.asarray(ids, np.int32), text=prompt.text)

    def make_detokenizer(self, prompt_token_ids, params):
        return None

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*([1] if add_special_tokens else []), *map(ord, text)]

    def decode(self, token_ids, *, skip_special_tokens: bool = False) -> str:
        return "".join("<s>" if i == 1 else chr(i) for i in token_ids)

    def render_chat(self, messages, **kwargs):
        if not self.has_template:
            raise RequestError("the model has no chat template; use /v1/completions", "messages")
        self.seen = (messages, kwargs)
        lines = [f"{message['role']}: {_shown(message['content'])}" for message in messages]
        if kwargs["add_generation_prompt"]:
            lines.append("assistant:")
        return {"prompt": "\n".join(lines), "add_special_tokens": False}


def _shown(content):
    parts = content if isinstance(content, list) else [{"text": content}]
    return "".join(str(part.get("text", "*")) for part in parts)


class Call:
    """Arguments of one call of `generate`."""

    def __init__(
        self, prompt: Any, params: SamplingParams, request_id: str, fields: dict[str, Any]
    ) -> None:
        self.prompt, self.params, self.request_id, self.fields = prompt, params, request_id, fields


class FakePooling:
    """The call set `pooling` of a model with a score head."""

    @staticmethod
    def scores_by(tasks: Any) -> str:
        return "score"

    @staticmethod
    def matched(first: str | list[str], second: str | list[str]) -> list[tuple[str, str]]:
        left, right = ([each] if isinstance(each, str) else each for each in (first, second))
        return list(zip(left * len(right) if len(left) == 1 else left, right, strict=True))


class FakeEngine:
    """Answers every prompt with `answer`, one character per step.

    `before` is raised by the next calls before an output, `after` after two of them. While `gate` is unset, calls wait
    before each output; aborted ones end. `endless` answers continue until aborted.
    """

    def __init__(self, config: EngineConfig, *, answer: str = ANSWER, text: bool = True) -> None:
        self.config, self.model, self.answer = config, MODEL, answer
        self.io_processor = CharacterIO(IOProcessorContext(config, MODEL)) if text else None
        self.info = EngineInfo(
            model="fake",
            served_model_name="fake",
            max_model_len=MODEL.max_model_len,
            num_gpu_blocks=10,
            block_size=16,
            plugins=(PluginRecord("scheduler", "fake", "m:C", "fake-dist", "1.0"),),
            tasks={"score": 1, "embed": 2},
            usage=json.loads(config.describe()),
        )
        self.stat_loggers: dict[str, Any] = {}
        self.received: list[Call] = []
        self.calls = {"pooling": FakePooling}
        self.submitted: list[tuple[str, tuple[object, ...]]] = []
        self.running: dict[str, asyncio.Event] = {}
        self.ended: dict[str, str] = {}
        self.before: Exception | None = None
        self.after: Exception | None = None
        self.capacity_error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.endless = False
        self.step_s = 0.0
        self.stop_reason: int | str | None = None
        self.dead = False
        self.recovering = False
        self.is_draining = False
        self.was_shut_down = False
        self.rpc: list[Any] | Exception = Unsupported("no calls")
        self.rpc_calls: list[str] = []

    async def collective_rpc(self, method: str) -> list[Any]:
        self.rpc_calls.append(method)
        if isinstance(self.rpc, Exception):
            raise self.rpc
        return self.rpc

    @classmethod
    def from_config(cls, config: EngineConfig) -> FakeEngine:
        return cls(config)

    async def generate(
        self, prompt: Any, sampling_params: SamplingParams, request_id: str, **fields: Any
    ) -> AsyncIterator[RequestOutput]:
        params = sampling_params
        self.received.append(Call(prompt, params, request_id, fields))
        if self.before is not None:
            raise self.before
        if self.is_draining:
            raise DrainingError("the server is shutting down", retry_after_s=5)
        ids, text = self._prompt(prompt, params, fields)
        stop = self.running[request_id] = asyncio.Event()
        try:
            async for output in self._outputs(request_id, ids, text, params, stop):
                yield output
            self.ended[request_id] = "finished"
        except (asyncio.CancelledError, GeneratorExit):
            self.ended[request_id] = "aborted"
            raise
        finally:
            del self.running[request_id]

    def _prompt(
        self, prompt: Any, params: SamplingParams, fields: dict[str, Any]
    ) -> tuple[list[int], str | None]:
        if self.io_processor is None:
            return list(prompt["prompt_token_ids"]), None
        special = fields.get("add_special_tokens", True)
        processed = self.io_processor.process_prompt(
            read_prompt(prompt), params, add_special_tokens=special
        )
        ids = processed.token_ids.tolist()
        if not ids:
            raise RequestError("the prompt is empty; give at least one token", "prompt")
        if len(ids) >= MODEL.max_model_len:
            raise RequestError(
                f"the prompt has {len(ids)} tokens, but max_model_len=100", "prompt", "too_long"
            )
        return ids, processed.text

    async def _outputs(self, request_id, ids, text, params, stop) -> AsyncIterator[RequestOutput]:
        answer = [ord(c) for c in self.answer]
        limit = params.max_tokens or MODEL.max_model_len - len(ids)
        steps = 10**9 if self.endless else min(len(answer), limit)
        collected: list[int] = []
        for step in range(steps):
            await self._pace(stop, step)
            token = answer[step % len(answer)]
            collected.append(token)
            last = step == steps - 1 or stop.is_set()
            reason = (
                ("abort" if stop.is_set() else "length" if steps >= limit else "stop")
                if last
                else None
            )
            if params.output_kind is OutputKind.DELTA or last:
                new = [token] if params.output_kind is OutputKind.DELTA else collected
                yield self._output(request_id, ids, text, params, new, reason)
            if last:
                return

    async def _pace(self, stop: asyncio.Event, step: int) -> None:
        await asyncio.sleep(self.step_s)
        while not self.gate.is_set() and not stop.is_set() and not self.dead:  # noqa: ASYNC110  three conditions
            await asyncio.sleep(0.005)
        if self.after is not None and step == 2:
            raise self.after
        if self.dead:
            raise EngineDeadError(
                "the engine died: engine 0 (pid 7) ended with signal 9 at 0x7f001122"
            )

    def _output(self, request_id, ids, text, params, new, reason) -> RequestOutput:
        chars = "".join(map(chr, new)) if params.detokenize else ""
        completions = [
            CompletionOutput(
                i,
                chars,
                list(new),
                reason,
                self.stop_reason if reason == "stop" else None,
                logprobs=[_logprobs(t, params.logprobs) for t in new]
                if params.logprobs is not None
                else None,
            )
            for i in range(params.n)
        ]
        prompt_logprobs = None
        if params.prompt_logprobs is not None:
            prompt_logprobs = [None, *(_logprobs(t, params.prompt_logprobs) for t in ids[1:])]
        return RequestOutput(
            request_id,
            text,
            ids,
            completions,
            reason is not None,
            num_cached_tokens=2,
            prompt_logprobs=prompt_logprobs,
        )

    # ------------------------------------------------------------------ the rest of the surface
    def listen(self) -> None:
        self.is_listening = True

    async def encode(
        self, prompt: Any, params: PoolingParams, request_id: str, **fields: Any
    ) -> PoolingOutput:
        """A vector of the prompt's length."""
        self.received.append(Call(prompt, params, request_id, fields))
        text = prompt if isinstance(prompt, str) else prompt.get("prompt", "")
        return PoolingOutput(request_id, [1, 2], np.asarray([len(text), 1.0], np.float32))

    async def score(
        self, text_1: str, text_2: str, request_id: str, **fields: Any
    ) -> PoolingOutput:
        return await self.encode(text_1 + text_2, PoolingParams(), request_id, **fields)

    def submit(self, method: str, *args: object) -> None:
        self.submitted.append((method, args))

    @property
    def num_ignored_fields(self) -> int:
        return self.submitted.count(("record_ignored_field", ()))

    async def render_metrics(self) -> tuple[bytes, str] | None:
        renders = [getattr(one, "render", None) for one in self.stat_loggers.values()]
        return next((render() for render in renders if render is not None), None)

    async def abort(self, request_id: Any) -> None:
        for name in [request_id] if isinstance(request_id, str) else request_id:
            if name in self.running:
                self.running[name].set()

    async def abort_all(self) -> None:
        await self.abort(list(self.running))

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109  the surface of AsyncLLM
        self.is_draining = True
        deadline = asyncio.get_running_loop().time() + timeout
        while self.running:
            if self.errored or asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    @property
    def errored(self) -> bool:
        return self.dead

    @property
    def engine_pids(self) -> dict[str, int]:
        return {}

    @property
    def is_serving(self) -> bool:
        return not self.dead and not self.recovering

    @property
    def is_running(self) -> bool:
        return not self.dead

    def check_capacity(self, count: int = 1) -> None:
        if self.capacity_error is not None:
            raise self.capacity_error

    async def check_health(self) -> None:
        if self.dead:
            raise EngineDeadError("dead")

    @property
    def num_unfinished_requests(self) -> int:
        return len(self.running)

    def shutdown(self) -> None:
        self.was_shut_down = True


def _logprobs(token: int, count: int) -> dict[int, Logprob]:
    entry = {token: Logprob(-0.5, 1, chr(token))}
    for i in range(1, count):
        entry[i + 60] = Logprob(-float(i), i + 1, None)
    return entry


def sse_events(text: str) -> list[str]:
    """The data of every event of a stream, in order; every line of it must be well formed."""
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(re.fullmatch(r"data: [^\n]+", event) for event in events), events
    return [event.removeprefix("data: ") for event in events]
