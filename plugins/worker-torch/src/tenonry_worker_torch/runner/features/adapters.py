"""Adapters of running rows: assigned to the tokens of each pass. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from tenonry.step import RowFailure
from tenonry_torch_base.buffers import put_on_host
from tenonry_worker_torch.adapters.batch import AdapterBatch
from tenonry_worker_torch.adapters.registry import NONE
from tenonry_worker_torch.runner.feature import RunnerFeature

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_worker_torch.adapters.registry import Adapters
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step


class AdapterRows(RunnerFeature):
    """The adapter of each row by number, i32[max_num_seqs]. A row whose adapter is missing fails."""

    name: ClassVar[str] = "adapters"
    conflicts: ClassVar[Mapping[str, str]] = {
        "pipeline_parallel_size": "adapters are not cut into stages; use --tensor-parallel-size instead"
    }

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.adapters is not None

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        # One registry for all models; it exists, see `is_active`.
        self._adapters: Adapters = context.model.adapters  # type: ignore[assignment]
        self._row_number = np.full(len(context.state.handle), NONE, np.int32)

    def enter(self, new: NewRow) -> None:
        if new.adapter is None:
            return
        number = self._adapters.hold(new.row, new.adapter.digest)
        self._row_number[new.row] = number
        if number == NONE:
            self.context.failures.set(new.row, RowFailure.ADAPTER)

    def leave(self, rows: NDArray[np.int32]) -> None:
        for row in rows.tolist():
            self._adapters.drop(row, int(self._row_number[row]))
            self._row_number[row] = NONE

    def prepare(self, step: Step) -> None:
        """Compute the slot of each token; a pass over the same decoding rows reuses that of the previous one."""
        inputs = step.inputs
        adapters = self._adapters
        numbers = self._row_number[inputs.row]
        only_decodes = len(inputs.token_ids) == len(numbers)
        is_pruned = step.is_pruned
        can_go_on = only_decodes and not is_pruned
        if can_go_on and adapters.step.goes_on(numbers):
            return
        adapters.step.clear()
        if can_go_on and adapters.is_on_host:
            adapters.step.decoding = numbers
        present = np.unique(numbers[numbers != NONE]).tolist()
        if not present:
            return
        slots = adapters.slots_of(present)[numbers]
        of_tokens = slots if only_decodes else np.repeat(slots, inputs.num_tokens)
        put = put_on_host if adapters.is_on_host else step.buffers.put
        adapters.step.full = AdapterBatch(of_tokens, put, "adapters")
        if is_pruned:
            kept = slots[inputs.samples]
            adapters.step.num_kept = len(kept)
            if len(kept) and kept.max() != NONE:
                adapters.step.kept = AdapterBatch(kept, put, "kept_adapters")

    def dummy(self) -> None:
        self._adapters.step.clear()
