"""Sampling modes of a pass: one token per row, tokens of verified drafts, or none. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

import torch

from tenonry_torch_base.profiling import scoped
from tenonry_torch_base.results import StepResult
from tenonry_torch_base.sampler.processors import SampleStep
from tenonry_torch_base.sampler.sampler import Sampled
from tenonry_torch_base.verification import Verification

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry.step import ModelRunnerOutput, StepFuture
    from tenonry_scheduling.columns import BatchState
    from tenonry_torch_base.history import History
    from tenonry_torch_base.parallel.groups import TensorGroup
    from tenonry_torch_base.parallel.tokens import RowSampler
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_torch_base.verification import Verifier
    from tenonry_worker_torch.runner.step import RowFailures, Step

    Answer = ModelRunnerOutput | StepFuture


class Sampling(Protocol):
    """`verifies`: logits of all tokens of a pass are computed."""

    verifies: ClassVar[bool]

    def begin(self, step: Step) -> None:
        """Start work that may overlap with the forward pass."""
        ...

    def sample(self, step: Step) -> None:
        """Choose tokens by the logits of the pass."""
        ...

    def answer(self, step: Step) -> Answer:
        """Result of the pass; of one without rows, too."""
        ...


class FailingSampler:
    """Adds the failures of rows that features reported."""

    def __init__(self, sampler: RowSampler, failures: RowFailures) -> None:
        self._sampler = sampler
        self._failures = failures

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled:
        sampled = self._sampler.sample(logits, step)
        if self._failures.any:
            self._failures.put_into(step.row, sampled.failure)
        return sampled


class NoTokens:
    """Token 0 for each row of a model whose answers are vectors."""

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled:
        zeros = torch.zeros(len(step.row), dtype=torch.long, device=logits.device)
        return Sampled(zeros, zeros.int())


class TokenSampling:
    """One token of each sampling row, by `chooser`; `sampler` has their parameters."""

    verifies: ClassVar[bool] = False

    def __init__(
        self,
        sampler: Sampler,
        chooser: RowSampler,
        state: BatchState,
        history: History,
        as_answer: Callable[[StepResult], Answer],
    ) -> None:
        self._sampler = sampler
        self._chooser = chooser
        self._state = state
        self._history = history
        self.as_answer = as_answer

    def begin(self, step: Step) -> None:
        inputs = step.inputs
        rows = inputs.row[inputs.samples]
        num_output = self._state.num_output[rows] - 1
        step.sampling = SampleStep(rows, num_output, inputs.seq_lens[inputs.samples])
        if len(rows) and self._sampler.prepares:
            self._sampler.prepare(step.sampling)

    @scoped("tenonry: sample")
    def sample(self, step: Step) -> None:
        rows = step.sampling
        if len(rows.row) and step.sampled is None:
            step.sampled = self._chooser.sample(step.logits, rows)
            self._history.record(rows.row, rows.length, step.sampled.token_ids, step.buffers)

    def answer(self, step: Step) -> Answer:
        rows = step.inputs.row[step.inputs.samples]
        result = StepResult(step.output.step_id, rows, step.sampled, step.prompts)
        result.prepared = step.prepared
        result.pooled = step.pooled
        return self.as_answer(result)


class NoSampling:
    """Sampling of a pipeline stage before the last: tokens of decoding rows come with the step."""

    verifies: ClassVar[bool] = False

    def __init__(self, as_answer: Callable[[StepResult], Answer]) -> None:
        self.as_answer = as_answer

    def begin(self, step: Step) -> None:
        pass

    def sample(self, step: Step) -> None:
        pass

    def answer(self, step: Step) -> Answer:
        return self.as_answer(StepResult(step.output.step_id, step.output.row, None, []))


class DraftSampling:
    """Tokens of each row up to its first rejected draft; the group's first rank decides."""

    verifies: ClassVar[bool] = True

    def __init__(
        self, verifier: Verifier, state: BatchState, group: TensorGroup, failures: RowFailures
    ) -> None:
        self._verifier = verifier
        self._state = state
        self._group = group
        self._failures = failures

    def begin(self, step: Step) -> None:
        self._verifier.prepare(step.inputs)

    @scoped("tenonry: verify")
    def sample(self, step: Step) -> None:
        inputs = step.inputs
        if self._group.rank == 0:
            made = self._verifier.sample(step.logits, inputs)
            if self._failures.any:
                self._failures.put_into(inputs.row, torch.from_numpy(made.failure))
        else:
            made = Verification(inputs, self._state)
        self._group.broadcast(torch.from_numpy(made.token_ids))
        self._verifier.settle(made)
        step.verification = made

    def answer(self, step: Step) -> Answer:
        answer = self._verifier.answer(step.output.step_id, step.verification)
        answer.prepared = step.prepared
        return answer
