"""States of rows, as models with recurrent layers keep them: their memory, and snapshots at shared prefixes. Worker
process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from tenonry_worker_torch.runner.feature import RunnerFeature, Split

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step
    from tenonry_worker_torch.state.states import States


class StateSnapshots(RunnerFeature):
    """Rows that enter behind a shared prefix continue from a snapshot; steps save further ones.

    Snapshots are blocks of the last KV group. They are restored before the pass and saved after it.
    """

    name: ClassVar[str] = "states"
    split: ClassVar[Split] = Split.NEVER  # a pass changes states in place

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        return context.model.states is not None

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self._group = len(context.state.block_table) - 1
        self._entering: dict[int, int] = {}  # row → slot of its snapshot

    @property
    def _states(self) -> States:
        return self.context.model.states  # type: ignore[return-value] - see `is_active`

    def allocate(self) -> None:
        num_rows = len(self.context.state.handle)
        self._states.allocate(num_rows, self.context.num_state_slots)

    def enter(self, new: NewRow) -> None:
        """Enter a row. Raises RuntimeError for one without a state that starts after its first token."""
        if not new.num_computed:
            return
        ids = new.block_ids
        found = ids[self._group] if self._group < len(ids) else ()
        if len(found) != 1:
            raise RuntimeError(
                f"row {new.row} enters after {new.num_computed} tokens with {len(found)} snapshots of its state; one "
                "is needed"
            )
        self._entering[new.row] = int(found[0])

    def leave(self, rows: NDArray[np.int32]) -> None:
        for row in rows.tolist():
            self._entering.pop(row, None)

    def prepare(self, step: Step) -> None:
        if self._entering:
            self._states.restore(list(self._entering.values()), list(self._entering))
            self._entering.clear()

    def after(self, step: Step) -> None:
        output = step.output
        if len(output.new_block_row):
            chosen = output.new_block_group == self._group
            rows = output.new_block_row[chosen].tolist()
            self._states.save(rows, output.new_block_id[chosen].tolist())
