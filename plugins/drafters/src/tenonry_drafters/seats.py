"""Slots of a draft model for the K/V of rows: a fixed number, each with blocks of its own. Worker process; no torch.

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


class Seats:
    """`state`: columns by seat; the first `num_computed` of its `token_ids` are those whose K/V are kept. `generation`
    i64[seats] changes where K/V that a backend may hold elsewhere become void.
    """

    def __init__(self, num_seats: int, max_len: int, block_size: int) -> None:
        self.max_len = max_len
        self.state = BatchState(num_seats, max_len, block_size)
        table = self.state.block_table[0]
        self.num_blocks = table.size
        table[:] = np.arange(table.size, dtype=np.int32).reshape(table.shape)
        self.generation: NDArray[np.int64] = np.zeros(num_seats, np.int64)
        self._free = list(range(num_seats))
        self._seats: dict[int, int] = {}  # of rows, least recently used first

    def take(self, rows: Sequence[int]) -> I32:
        """The seats of `rows`, i32[R]. Raises ValueError for more rows than there are seats."""
        num_seats = len(self.generation)
        if len(rows) > num_seats:
            raise ValueError(f"{len(rows)} rows need drafts; a draft model has {num_seats} seats")
        known = {row: self._seats.pop(row) for row in rows if row in self._seats}
        for row in rows:
            if row in known:
                self._seats[row] = known[row]
                continue
            if not self._free:
                self.leave(next(iter(self._seats)))
            self._seats[row] = self._free.pop()
        return np.array([self._seats[row] for row in rows], np.int32)

    def leave(self, row: int) -> None:
        """The seat of a row, if it has one, is free."""
        seat = self._seats.pop(row, None)
        if seat is not None:
            self._cut(seat, 0)
            self._free.append(seat)

    def begin(self, seat: int, history: I32) -> int:
        """Write a history behind its cached prefix, and truncate the rest; returns the number of tokens to compute, at
        least one, since the prediction follows the last.
        """
        state = self.state
        length = len(history)
        most = min(int(state.num_computed[seat]), length - 1)
        kept = state.token_ids[seat, :most]
        differs = kept != history[:most]
        first = int(differs.argmax()) if differs.any() else most
        if first < state.num_computed[seat]:
            self._cut(seat, first)
        state.token_ids[seat, first:length] = history[first:]
        return length - first

    def _cut(self, seat: int, length: int) -> None:
        self.state.num_computed[seat] = length
        self.generation[seat] += 1
