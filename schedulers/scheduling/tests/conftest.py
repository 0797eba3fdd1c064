"""A scheduler whose steps are scripted by the test, and a driver that sends it requests and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreOutputs, EngineCoreRequest, make_handle
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling import BaseScheduler, StepBuilder
from tenonry_testkit.fakes import SimpleBlocks, VirtualClock

Script = Callable[[StepBuilder], object]


def run_everything(step: StepBuilder) -> None:
    """Choose as an ordinary scheduler does."""
    step.run_ready()
    for request in step.waiting:
        if not step.run(request):
            break


class Scripted(BaseScheduler):
    """`script(step)` is its choice."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, SimpleBlocks(context))
        self.script: Script = run_everything

    def choose(self, step: StepBuilder) -> None:
        self.script(step)


class SchedulerDriver:
    """Sends requests to the scheduler, and answers its steps with token 9 by default."""

    def __init__(
        self,
        *,
        depth: int = 1,
        feeds_back: bool = True,
        max_num_seqs: int = 4,
        budget: int = 16,
        max_model_len: int = 32,
        num_blocks: int = 32,
        groups: int = 1,
        **config: Any,
    ) -> None:
        self.config = EngineConfig(
            model="fake", max_num_seqs=max_num_seqs, max_num_batched_tokens=budget, **config
        )
        self.kv_cache = KVCacheConfig(
            num_blocks=num_blocks,
            block_size=4,
            groups=tuple(KVCacheGroup(layers=(str(i),)) for i in range(groups)),
            max_model_len=max_model_len,
        )
        self.clock = VirtualClock()
        self.scheduler = Scripted(
            SchedulerContext(
                self.config,
                self.kv_cache,
                max_model_len=max_model_len,
                clock=self.clock,
                plugin_name="scripted",
                max_concurrent_steps=depth,
                feeds_back_tokens=feeds_back,
            )
        )
        self.rows, self.waiting = self.scheduler.rows, self.scheduler.waiting
        self.count = 0

    def request(
        self,
        prompt: int | Sequence[int],
        max_tokens: int | None = 4,
        *,
        client: int = 0,
        **fields: Any,
    ) -> Request:
        """A request that was not sent yet; a prompt given as a number has so many tokens."""
        self.count += 1
        ids = range(100, 100 + prompt) if isinstance(prompt, int) else prompt
        params = {
            key: fields.pop(key)
            for key in ("min_tokens", "logprobs", "prompt_logprobs", "structured_output")
            if key in fields
        }
        source = EngineCoreRequest(
            handle=make_handle(client, self.count),
            request_id=f"r{self.count}",
            prompt_token_ids=np.array(ids, np.int32),
            sampling_params=SamplingParams(max_tokens=max_tokens, **params),
            **fields,
        )
        return Request(source, self.count, self.clock(), self.kv_cache.max_model_len)

    def ask(
        self, prompt: int | Sequence[int], max_tokens: int | None = 4, **fields: Any
    ) -> Request:
        request = self.request(prompt, max_tokens, **fields)
        self.scheduler.add_request(request)
        return request

    def step(self, script: Script | None = None) -> SchedulerOutput:
        if script is not None:
            self.scheduler.script = script
        return self.scheduler.schedule()

    def compile(self) -> None:
        """Run the steps that request grammars, answered by a worker that has compiled them."""
        self.answer(self.step())

    def answer(
        self,
        output: SchedulerOutput,
        tokens: dict[int, int] | int = 9,
        failed: dict[int, int] | None = None,
        **fields: Any,
    ) -> dict[int, EngineCoreOutputs]:
        """`tokens`: one for all sampling rows, or by row; `failed`: row → code."""
        failed = failed or {}
        rows = [row for row in output.row[output.samples].tolist() if row not in failed]
        ids = [tokens[row] if isinstance(tokens, dict) else tokens for row in rows]
        result = ModelRunnerOutput(
            step_id=output.step_id,
            row=np.array(rows, np.int32),
            offsets=np.arange(len(rows) + 1, dtype=np.int32),
            token_ids=np.array(ids, np.int32),
            failed_row=np.array(list(failed), np.int32),
            failed_code=np.array(list(failed.values()), np.int32),
            **{"prepared": list(output.prepare), **fields},
        )
        return self.scheduler.update_from_output(output, result)

    def turn_sizes(self, script: Script) -> list[int]:
        """The tokens of each row in a step that is answered."""
        output = self.step(script)
        self.answer(output)
        return output.num_tokens.tolist()

    def turn(self, tokens: dict[int, int] | int = 9) -> dict[int, EngineCoreOutputs]:
        return self.answer(self.step(), tokens)


@pytest.fixture
def make_driver() -> type[SchedulerDriver]:
    return SchedulerDriver
