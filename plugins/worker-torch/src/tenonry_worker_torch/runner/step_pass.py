"""The model's part of a step: hooks of features, then the computation. Worker process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np

from tenonry_torch_base.profiling import scoped

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step import Step


class StepPass(ABC):
    """Sets `Step.logits`. `affinity`: context of the model's own computation, such as CPU affinity; other threads that
    a step starts stay outside. `generation` i64[max_num_seqs]: a row's number of fillings, for backends.
    """

    model: LoadedModel
    can_prune = False

    def __init__(self, context: RunnerContext, features: FeatureList) -> None:
        self.affinity: AbstractContextManager[None] = nullcontext()
        self._state = context.state
        self._failures = context.failures
        self.generation = np.zeros(len(self._state.handle), np.int64)
        self._features = features
        self.adopt(context.model)

    def enter(self, new: NewRow) -> None:
        """A row is filled anew."""
        self.generation[new.row] += 1
        self._failures.clear(new.row)

    def leave(self, rows: NDArray[np.int32]) -> None:
        """Rows are free."""
        self.model.backend.release(rows)
        for row in rows.tolist():
            self._failures.clear(row)

    def adopt(self, model: LoadedModel) -> None:
        """Compute with this model from now on."""
        self.model = model

    def sample_with(self, sampler: Sampler) -> None:  # noqa: B027 - few sample by themselves
        """The sampler of the runner, for passes that set `Step.sampled` and record its tokens in the history. Called
        once, after construction.
        """

    def forget_model(self) -> None:
        """Drop the model; no step follows before `adopt`."""
        self.model = None  # type: ignore[assignment]

    def release(self) -> None:  # noqa: B027 - few keep anything
        """Drop references to the KV cache, whose memory is about to be freed."""

    @scoped("tenonry: forward")
    def __call__(self, step: Step) -> None:
        """Set `step.logits`. Repeatable with parts of the step: only K/V and outputs of features change."""
        step.can_prune = self.can_prune
        for prepare in self._features.prepare:
            prepare(step)
        self.compute(step)

    @abstractmethod
    def compute(self, step: Step) -> None:
        """Set `step.logits` of a step that features have prepared."""

    def begin_part(self, rows: NDArray[np.int32]) -> None:
        """Start a repeated computation of these rows: the backend's state of them besides their blocks may be wrong,
        and is not used for another generation.
        """
        self.generation[rows] += 1
        self.model.buffers.begin_step()

    def dummy(self) -> None:
        """A pass over tokens of no request, for ranks that wait for this one. No request's K/V are touched."""
        for hook in self._features.dummy:
            hook()
