"""The tokens of every row where the model can read them. Worker process.

On the CPU this is the batch state's own array; on another device it is a copy that is kept up to date there, so that a
token sampled by one step feeds the next without a trip to the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from tenonry.step import SchedulerOutput
    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_torch_base.buffers import StepBuffers


class History:
    """`tokens` i32[max_num_seqs, max_model_len + 1] on the device."""

    def __init__(self, state: BatchState, device: torch.device) -> None:
        self.is_shared = self.shares(device)
        if self.is_shared:
            self.tokens = torch.from_numpy(state.token_ids)
        else:
            self.tokens = torch.zeros(state.token_ids.shape, dtype=torch.int32, device=device)
        self._state = state

    @staticmethod
    def shares(device: torch.device) -> bool:
        """Return True if the device reads the host's memory."""
        return device.type == "cpu"

    def inputs(
        self, output: SchedulerOutput, inputs: StepInputs, buffers: StepBuffers
    ) -> torch.Tensor:
        """Token ids i64[T] of the step, on the device; call after the step was applied to the state."""
        if self.is_shared:
            return torch.from_numpy(inputs.token_ids.astype(np.int64))
        self._copy_new(output, inputs, buffers)
        rows = buffers.put("token_row", inputs.token_row.astype(np.int64))
        positions = buffers.put("token_position", inputs.positions.astype(np.int64))
        return self.tokens[rows, positions].long()

    def _copy_new(self, output: SchedulerOutput, inputs: StepInputs, buffers: StepBuffers) -> None:
        """Copy tokens that originate on the host: those of new rows, and ids sent with the step."""
        known = output.next_token >= 0
        rows = []
        columns = []
        ids = []
        for new in output.new:
            count = len(new.token_ids)
            rows.append(np.full(count, new.row, np.int64))
            columns.append(np.arange(count, dtype=np.int64))
            ids.append(np.asarray(new.token_ids, np.int32))
        rows.append(inputs.row[known].astype(np.int64))
        columns.append(inputs.start[known].astype(np.int64))
        ids.append(output.next_token[known].astype(np.int32))
        if not sum(map(len, ids)):
            return
        where = (
            buffers.put("history_row", np.concatenate(rows)),
            buffers.put("history_column", np.concatenate(columns)),
        )
        tokens = buffers.put("history_token", np.concatenate(ids))
        self.tokens.index_put_(where, tokens)

    def record(
        self, rows: np.ndarray, columns: np.ndarray, token_ids: torch.Tensor, buffers: StepBuffers
    ) -> None:
        """Store the tokens that `rows` just sampled at `columns`; on the CPU the batch state's own array is written."""
        if self.is_shared:
            self._state.token_ids[rows, columns] = token_ids.numpy()
            return
        where = (
            buffers.put("sampled_row", rows.astype(np.int64)),
            buffers.put("sampled_column", columns.astype(np.int64)),
        )
        self.tokens.index_put_(where, token_ids.to(torch.int32))
