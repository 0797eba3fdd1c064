"""Sequence lengths that the rotary tables of a step depend on, by token. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.kv_cache import LengthClasses
    from tenonry.step import BatchState, NewRow, StepInputs


class RowLengths:
    """Length from which `generate` lengthens the table of each row: the end of its prompt, or, with `restarts`, of all
    tokens that it entered with.
    """

    def __init__(self, rule: LengthClasses, state: BatchState) -> None:
        self._rule = rule
        self._state = state
        self._entered = np.zeros(len(state.num_prompt), np.int64)

    def enter(self, new: NewRow) -> None:
        """A row starts, or comes back."""
        self._entered[new.row] = len(new.token_ids)

    def of_tokens(self, inputs: StepInputs) -> NDArray[np.int64]:
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
