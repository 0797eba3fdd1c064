"""Result of a step: the sampler's tensors as a ModelRunnerOutput, now or when the device is done. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import ModelRunnerOutput, PromptLogprobs, TokenLogprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.sampler.logprobs import Logprobs
    from tenonry_torch_base.sampler.sampler import Sampled


class PromptPart:
    """Log-probabilities of one chunk of one row's prompt, from prompt position `start` on."""

    __slots__ = ("logprobs", "row", "start")

    def __init__(self, row: int, start: int, logprobs: Logprobs) -> None:
        self.row = row
        self.start = start
        self.logprobs = logprobs


class StepResult:
    """The pieces of one step's answer, still on the device. `prepared` and `pooled`: see `ModelRunnerOutput`."""

    __slots__ = ("pooled", "prepared", "prompts", "rows", "sampled", "step_id")

    def __init__(
        self,
        step_id: int,
        rows: NDArray[np.int32],
        sampled: Sampled | None,
        prompts: list[PromptPart],
    ) -> None:
        self.step_id = step_id
        self.rows = rows
        self.sampled = sampled
        self.prompts = prompts
        self.prepared: list[int] = []
        self.pooled: dict[int, NDArray[np.float32]] | None = None

    def output(self) -> ModelRunnerOutput:
        """The answer on the host; waits for the device if it has to."""
        answer = self._answer()
        answer.prepared = self.prepared
        if self.pooled is not None:
            answer.pooled = self.pooled
        return answer

    def _answer(self) -> ModelRunnerOutput:
        prompts = [
            PromptLogprobs(part.row, part.start, *part.logprobs.numpy()) for part in self.prompts
        ]
        if self.sampled is None:
            return ModelRunnerOutput(step_id=self.step_id, prompt_logprobs=prompts)
        ids = self.sampled.token_ids.cpu().numpy().astype(np.int32)
        failure = self.sampled.failure.cpu().numpy()
        if not failure.any():
            return ModelRunnerOutput(
                step_id=self.step_id,
                row=self.rows,
                offsets=np.arange(len(ids) + 1, dtype=np.int32),
                token_ids=ids,
                logprobs=self._logprobs(failure == 0),
                prompt_logprobs=prompts,
            )
        good = failure == 0
        return ModelRunnerOutput(
            step_id=self.step_id,
            row=self.rows[good],
            offsets=np.arange(int(good.sum()) + 1, dtype=np.int32),
            token_ids=ids[good],
            logprobs=self._logprobs(good),
            prompt_logprobs=prompts,
            failed_row=self.rows[~good],
            failed_code=failure[~good].astype(np.int32),
        )

    def _logprobs(self, good: NDArray[np.bool_]) -> TokenLogprobs | None:
        sampled = self.sampled
        if sampled is None or sampled.logprobs is None or sampled.logprob_lines is None:
            return None
        lines = sampled.logprob_lines
        kept = good[lines]
        ids, values, rank = sampled.logprobs.numpy()
        return TokenLogprobs(self.rows[lines[kept]], ids[kept], values[kept], rank[kept])


class DeviceFuture:
    """A StepFuture that is done when the device has passed an event; no thread waits for it.

    Any thread may read it: it selects the device first, as CUDA would otherwise open a context on device 0 there.
    """

    __slots__ = ("_device", "_event", "_output", "_result")

    def __init__(self, result: StepResult, device: torch.device) -> None:
        self._result = result
        self._device = device
        self._output: ModelRunnerOutput | None = None
        self._start_copies(result)
        self._event = torch.cuda.Event()
        self._event.record()

    @staticmethod
    def _start_copies(result: StepResult) -> None:
        """Start copies of all tensors to the host, after this step and before the next, to hide their latency."""
        sampled = result.sampled
        if sampled is not None:
            sampled.token_ids = sampled.token_ids.to("cpu", non_blocking=True)
            sampled.failure = sampled.failure.to("cpu", non_blocking=True)
            if sampled.logprobs is not None:
                sampled.logprobs.start_copy()
        for part in result.prompts:
            part.logprobs.start_copy()

    def done(self) -> bool:
        if self._output is not None:
            return True
        self._select_device()
        return self._event.query()

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Waits for the event. `timeout` is not needed: a step that is launched ends, or the device fails."""
        if self._output is None:
            self._select_device()
            self._event.synchronize()
            self._output = self._result.output()
        return self._output

    def _select_device(self) -> None:
        """The selection is a thread's own."""
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
