"""Slots of a draft model for the K/V of rows: a fixed number, each with its own blocks. Worker process; no torch.

No call has more rows than there are slots, so drafting for a row depends on no other row. A row without a slot takes
that of the least recently used row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tenonry_scheduling.columns import BatchState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tenonry.step import I32


class DraftSlots:
    """`state`: columns by slot; the first `num_computed` of its `token_ids` are those whose K/V are kept. `generation`
    i64[slots] changes where K/V that a backend may hold elsewhere become void.
    """

    def __init__(self, num_slots: int, max_len: int, block_size: int) -> None:
        self.max_len = max_len
        self.state = BatchState(num_slots, max_len, block_size)
        table = self.state.block_table[0]
        self.num_blocks = table.size
        table[:] = np.arange(table.size, dtype=np.int32).reshape(table.shape)
        self.generation: NDArray[np.int64] = np.zeros(num_slots, np.int64)
        self._free = list(range(num_slots))
        self._slots: dict[int, int] = {}  # of rows, least recently used first

    def take(self, rows: Sequence[int]) -> I32:
        """The slots of `rows`, i32[R]. Raises ValueError for more rows than there are slots."""
        num_slots = len(self.generation)
        if len(rows) > num_slots:
            raise ValueError(f"{len(rows)} rows need drafts; a draft model has {num_slots} slots")
        known = {row: self._slots.pop(row) for row in rows if row in self._slots}
        for row in rows:
            if row in known:
                self._slots[row] = known[row]
                continue
            if not self._free:
                self.leave(next(iter(self._slots)))
            self._slots[row] = self._free.pop()
        return np.array([self._slots[row] for row in rows], np.int32)

    def leave(self, row: int) -> None:
        """The slot of a row, if it has one, is free."""
        slot = self._slots.pop(row, None)
        if slot is not None:
            self._cut(slot, 0)
            self._free.append(slot)

    def begin(self, slot: int, history: I32) -> int:
        """Write a history behind its cached prefix, and truncate the rest; returns the number of tokens to compute, at
        least one, since the prediction follows the last.
        """
        state = self.state
        length = len(history)
        most = min(int(state.num_computed[slot]), length - 1)
        kept = state.token_ids[slot, :most]
        differs = kept != history[:most]
        first = int(differs.argmax()) if differs.any() else most
        if first < state.num_computed[slot]:
            self._cut(slot, first)
        state.token_ids[slot, first:length] = history[first:]
        return length - first

    def _cut(self, slot: int, length: int) -> None:
        self.state.num_computed[slot] = length
        self.generation[slot] += 1
