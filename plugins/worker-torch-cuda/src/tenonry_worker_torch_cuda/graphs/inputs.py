"""Inputs of graphs at fixed addresses: block tables of all rows, and inputs of a step's rows. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.attention.base import DecodeRows
from tenonry_torch_base.sampler.repeated import DrawRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_torch_base.buffers import StepBuffers

ROW, POSITION, SLOT = range(3)  # lines of a step's packed inputs
UNKNOWN = -1


class DeviceTable:
    """Block tables of all rows on the device, i32[max_num_seqs + 1, blocks]; new blocks are sent once.

    The last row is for padding: each of its blocks is `dummy_block`, which no request uses.
    """

    def __init__(self, state: BatchState, dummy_block: int, device: torch.device) -> None:
        self._state = state
        rows, self.width = state.block_table[0].shape
        self.blocks = torch.full(
            (rows + 1, self.width), dummy_block, dtype=torch.int32, device=device
        )
        self._sent = np.zeros(rows, np.int32)  # blocks of each row
        self._generation = np.full(rows, UNKNOWN, np.int64)

    def send(
        self, rows: NDArray[np.int32], generation: NDArray[np.int64], buffers: StepBuffers
    ) -> None:
        """Update these rows. `generation` i64[max_num_seqs] changes when a row is reused."""
        is_new = self._generation[rows] != generation[rows]
        if is_new.any():
            changed = rows[is_new]
            self._sent[changed] = 0
            self._generation[changed] = generation[changed]
        counts = self._state.num_blocks[0][rows]
        missing = counts - self._sent[rows]
        total = int(missing.sum())
        if not total:
            return
        row = np.repeat(rows.astype(np.int64), missing)
        before = np.repeat(missing.cumsum() - missing, missing)
        column = np.repeat(self._sent[rows], missing) + np.arange(total) - before
        self._sent[rows] = counts
        places = buffers.put("graph_places", row * self.width + column)
        ids = buffers.put("graph_blocks", self._state.block_table[0][row, column])
        self.blocks.view(-1).index_put_((places,), ids)


class StepRows:
    """Inputs of a step of at most `size` rows: `token_ids` i64[size], and row, position and slot, i32[3, size]."""

    def __init__(self, size: int, table: DeviceTable, device: torch.device) -> None:
        self.size = size
        self._table = table
        self.draws = DrawRows(size, device)
        self.token_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._packed = torch.zeros(3, size, dtype=torch.int32, device=device)

    def fill(
        self,
        inputs: StepInputs,
        token_ids: torch.Tensor,
        state: BatchState,
        dummy_block: int,
        buffers: StepBuffers,
    ) -> None:
        """Set the inputs of a step, and of padding: separate tokens at position 0 of the dummy block."""
        count = len(inputs.row)
        packed = np.zeros((3, self.size), np.int32)
        packed[ROW, :count] = inputs.row
        packed[ROW, count:] = len(state.handle)
        packed[POSITION, :count] = inputs.positions
        block_size = state.block_size
        blocks = state.block_table[0][inputs.row, inputs.positions // block_size]
        packed[SLOT, :count] = blocks * block_size + inputs.positions % block_size
        packed[SLOT, count:] = dummy_block * block_size
        self._packed.copy_(buffers.put("graph_rows", packed))
        self.token_ids[:count].copy_(token_ids)

    def record(self, token_ids: torch.Tensor, history: torch.Tensor) -> None:
        """Store the tokens that follow the step's in `history` [rows, positions]; padding repeats the first row."""
        row = self._packed[ROW]
        place = torch.arange(self.size, device=row.device)
        source = torch.where(row < len(history), place, 0)
        where = (row[source].long(), self._packed[POSITION][source].long() + 1)
        history.index_put_(where, token_ids[source].to(history.dtype))

    def positions(self) -> torch.Tensor:
        """Position of each token, i64[size]."""
        return self._packed[POSITION].long()

    def attended(self) -> DecodeRows:
        """Return the rows in the form of an attention backend, from the current inputs."""
        return DecodeRows(
            self._table.blocks.index_select(0, self._packed[ROW]),
            self._packed[POSITION] + 1,
            self._packed[SLOT].long(),
        )
