"""Sequence lengths that the rotary tables of a pass depend on, by token. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry_worker_torch.runner.feature import RunnerFeature

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.kv_cache import LengthClasses
    from tenonry.step import NewRow
    from tenonry_scheduling.columns import StepInputs
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step


class RowLengths(RunnerFeature):
    """Length from which `generate` lengthens the table of each row: the end of its prompt, or, with `restarts`, of all
    tokens that it entered with.
    """

    name: ClassVar[str] = "row_lengths"

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.lengths is not None

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._rule: LengthClasses = context.model.lengths  # type: ignore[assignment] - see `is_active`
        self._state = context.state
        self._entered = np.zeros(len(self._state.num_prompt), np.int64)

    def enter(self, new: NewRow) -> None:
        self._entered[new.row] = len(new.token_ids)

    def prepare(self, step: Step) -> None:
        step.lengths = step.buffers.put("lengths", self._of_tokens(step.inputs))

    def _of_tokens(self, inputs: StepInputs) -> NDArray[np.int64]:
        """The length of each token's table, i64[T]. Raises RuntimeError for a row that should have been restarted."""
        rule = self._rule
        counted = self._entered if rule.restarts else self._state.num_prompt
        begins = counted[inputs.token_row]
        lengths = np.maximum(begins, inputs.positions + 1).astype(np.int64)
        if rule.restarts and bool(((begins <= rule.original) & (lengths > rule.original)).any()):
            raise RuntimeError(
                f"a row that started with at most {rule.original} tokens computes a later one: the scheduler must "
                "preempt it there, since its keys are then computed again (KVCacheGroup.lengths)"
            )
        return lengths
