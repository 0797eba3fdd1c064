"""Puts a scheduler into steady decoding and times its steps. The measuring process; no engine, no worker.

Prompts differ in length by up to a block, so that in every step the same share of the rows fills a block: rows that all
filled theirs in the same step would hide that cost in fifteen steps of sixteen.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import TenonryError
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.checks import load_options
from tenonry.plugin.manager import PluginManager, resolve_point
from tenonry.plugin.plan import load_class
from tenonry.request import Request
from tenonry.sampling_params import SamplingParams
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling.validator import StepValidator

PROMPT_LEN = 32
SETTLE_STEPS = 16  # decoding steps before the clock runs
MAX_SETTLE_STEPS = 100_000
TOKEN_ID = 1000


class Case(NamedTuple):
    """Numbers of running and waiting requests, and `validator` if each step is validated."""

    running: int
    waiting: int
    validator: bool


class StepTimes:
    """Seconds of each step: its parts and their sum."""

    def __init__(self) -> None:
        self.schedule: list[float] = []
        self.update: list[float] = []
        self.validate: list[float] = []

    @property
    def total(self) -> list[float]:
        return [sum(parts) for parts in zip(self.schedule, self.update, self.validate, strict=True)]


class SchedulerRig:
    """Builds a fresh scheduler per run. `origin` names its distribution and version."""

    def __init__(
        self, config: EngineConfig, *, steps: int, depth: int = 1, cpu_clock: bool = False
    ) -> None:
        manager = PluginManager(config.plugins)
        self._entry = manager.resolve("scheduler", config.scheduler, config)
        self._config = config
        self._steps = steps
        self._depth = depth
        self._clock = time.thread_time if cpu_clock else time.perf_counter
        self.origin = (
            f"{self._entry.distribution} {self._entry.version}".strip() or self._entry.path
        )

    def run(self, case: Case) -> StepTimes:
        """Fill, settle, and time the steps. The heap is frozen during the run, as in a serving engine."""
        drive = self._fill(case)
        drive.settle(case.running)
        gc.collect()
        gc.freeze()
        try:
            return drive.timed(self._steps, case.running)
        finally:
            gc.unfreeze()

    def _fill(self, case: Case) -> Drive:
        block_size = self._config.block_size or 16
        # One prefill a step at worst.
        longest = PROMPT_LEN + 2 * block_size + SETTLE_STEPS + self._steps + case.running
        config = self._config.replaced(
            max_num_seqs=case.running,
            max_num_batched_tokens=case.running * (PROMPT_LEN + block_size),
        )
        blocks = case.running * (-(-longest // block_size) + 1) + 1
        kv_cache = KVCacheConfig(
            num_blocks=blocks,
            block_size=block_size,
            groups=(KVCacheGroup(layers=("layer",)),),
            max_model_len=longest,
        )
        cls: Any = load_class(self._entry)
        context = SchedulerContext(
            config,
            kv_cache,
            max_model_len=longest,
            clock=time.monotonic,
            options=load_options(self._entry, cls),
            plugin_name=self._entry.name,
            max_concurrent_steps=self._depth,
            resolve=partial(resolve_point, allow_experimental=config.allow_experimental_plugins),
        )
        validator = StepValidator(context) if case.validator else None
        drive = Drive(cls(context), validator, self._depth, self._clock)
        rng = np.random.default_rng(case.running)
        for index in range(case.running + case.waiting):
            drive.add(rng.integers(300, 8000, PROMPT_LEN + index % block_size, np.int32), longest)
        return drive


class Drive:
    """One scheduler, its validator, and the steps in flight."""

    def __init__(
        self,
        scheduler: Scheduler,
        validator: StepValidator | None,
        depth: int,
        clock: Callable[[], float],
    ) -> None:
        self.scheduler = scheduler
        self._validator = validator
        self._depth = depth
        self._clock = clock
        self._in_flight: deque[SchedulerOutput] = deque()
        self._requests = 0
        self._params = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)

    def add(self, prompt: np.ndarray, max_model_len: int) -> None:
        """One request that never ends by itself."""
        self._requests += 1
        source = EngineCoreRequest(
            handle=self._requests,
            request_id=str(self._requests),
            prompt_token_ids=prompt,
            sampling_params=self._params,
        )
        request = Request(source, self._requests, time.monotonic(), max_model_len)
        if self._validator is not None:
            self._validator.added(request.new_row(0, 0, ()))
        self.scheduler.add_request(request)

    def settle(self, running: int) -> None:
        """Step until all `running` requests have decoded a while. Raises TenonryError if they never do."""
        decoding = 0
        for _ in range(MAX_SETTLE_STEPS):
            if not any(self.scheduler.get_request_counts()):
                break
            output = self.step(StepTimes())
            decoding = decoding + 1 if len(output.row) == running == output.total_tokens else 0
            if decoding == SETTLE_STEPS:
                return
        raise TenonryError(
            f"{running} requests never decoded together: {self.counts()}; try fewer with --running"
        )

    def counts(self) -> str:
        running, waiting = self.scheduler.get_request_counts()
        return f"{running} run and {waiting} wait"

    def timed(self, steps: int, running: int) -> StepTimes:
        """Time steps that decode one token of each running request. Raises TenonryError for one that does not."""
        times = StepTimes()
        for _ in range(steps):
            output = self.step(times)
            if not len(output.row) == running == output.total_tokens:
                raise TenonryError(
                    f"step {output.step_id} computes {output.total_tokens} tokens in {len(output.row)} rows; all "
                    f"{running} requests should decode: {self.counts()}"
                )
        return times

    def step(self, times: StepTimes) -> SchedulerOutput:
        """Schedule a step, and update from the oldest one in flight."""
        clock, validator = self._clock, self._validator
        start = clock()
        output = self.scheduler.schedule()
        scheduled = clock()
        if validator is not None:
            validator.scheduled(output)
        checked = clock()
        self._in_flight.append(output)
        updated = done = answered = clock()
        if len(self._in_flight) == self._depth:
            oldest = self._in_flight.popleft()
            result = answer(oldest)
            answered = clock()
            self.scheduler.update_from_output(oldest, result)
            updated = done = clock()
            if validator is not None:
                validator.answered(result)
                done = clock()
        times.schedule.append(scheduled - start)
        times.update.append(updated - answered)
        times.validate.append(checked - scheduled + done - updated)
        return output


def answer(output: SchedulerOutput) -> ModelRunnerOutput:
    """Result of the worker `null`: one token per sampling row."""
    row = output.row[output.samples]
    return ModelRunnerOutput(
        step_id=output.step_id,
        row=row,
        offsets=np.arange(len(row) + 1, dtype=np.int32),
        token_ids=np.full(len(row), TOKEN_ID, np.int32),
    )
