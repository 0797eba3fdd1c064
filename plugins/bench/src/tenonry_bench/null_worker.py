"""The worker `null`: one fixed token per sampling row, immediately. Worker process; needs only numpy.

With it an engine does everything but compute, so that a benchmark measures the engine itself. `step_ms` simulates a
device that takes exactly that long per step.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from pydantic import Field

from tenonry.errors import ConfigError
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.worker import Worker, WorkerContext
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import I32, ModelRunnerOutput, SchedulerOutput, StepFuture

DEFAULT_TOKEN_ID = (
    1000  # beyond the single bytes of a byte-level vocabulary: it is a piece of real text
)


class NullWorkerOptions(PluginOptions):
    """`token_id`: token sampled by every row; by default 1000, or the middle of a smaller vocabulary. `step_ms`:
    duration of a step on the simulated device. `steps_in_flight`: number of steps that it queues.
    """

    token_id: int | None = Field(None, ge=0, lt=2**31)
    step_ms: float = Field(0.0, ge=0, le=60_000)
    steps_in_flight: int = Field(1, ge=1, le=3)


class NullWorker(Worker):
    """Answers every step without looking at a token. No logprobs, no KV memory, no per-row state.

    Raises ConfigError for a `token_id` outside the model's vocabulary.
    """

    Options = NullWorkerOptions

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        given = context.options
        self.options = given if isinstance(given, NullWorkerOptions) else NullWorkerOptions()
        self._step_s = self.options.step_ms / 1000
        self._free_at = (
            0.0  # when the pretended device has done all steps so far, by the monotonic clock
        )
        rows = context.config.max_num_seqs
        self._token_ids = _constant(
            np.full(rows, self._token_id(context.model.vocab_size), np.int32)
        )
        self._offsets = _constant(np.arange(rows + 1, dtype=np.int32))

    def _token_id(self, vocab_size: int) -> int:
        token_id = self.options.token_id
        if token_id is None:
            return min(DEFAULT_TOKEN_ID, vocab_size // 2)
        if token_id >= vocab_size:
            raise ConfigError(
                f"worker option token_id={token_id} is outside the vocabulary: 0 to {vocab_size - 1}"
            )
        return token_id

    @property
    def steps_in_flight(self) -> int:
        return self.options.steps_in_flight

    def load(self) -> None:
        """No-op: there are no weights."""

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return (KVCacheGroup(layers=("null",)),)

    def available_memory(self) -> MemoryReport:
        # Blocks without bytes: the kernel plans the maximum usable number.
        return MemoryReport(0, is_host=True)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        """No-op: there is no cache."""

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        row = output.row[output.samples]
        count = len(row)
        result = ModelRunnerOutput(
            step_id=output.step_id,
            row=row,
            offsets=self._offsets[: count + 1],
            token_ids=self._token_ids[:count],
        )
        if not self._step_s:
            return result
        self._free_at = max(self._free_at, time.monotonic()) + self._step_s
        return TimedFuture(result, self._free_at)


class TimedFuture:
    """A StepFuture that resolves at a moment of the monotonic clock, in seconds."""

    __slots__ = ("_at", "_output")

    def __init__(self, output: ModelRunnerOutput, at: float) -> None:
        self._output, self._at = output, at

    def done(self) -> bool:
        return time.monotonic() >= self._at

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Sleep until the moment has come. Raises TimeoutError after `timeout` seconds."""
        left = self._at - time.monotonic()
        if timeout is not None and left > timeout:
            time.sleep(timeout)
            raise TimeoutError(
                f"the step needs {left:.3f} s more; the caller waits {timeout:.3f} s"
            )
        if left > 0:
            time.sleep(left)
        return self._output


def _constant(array: I32) -> I32:
    """Results are views of this array, so it is read-only."""
    array.setflags(write=False)
    return array
