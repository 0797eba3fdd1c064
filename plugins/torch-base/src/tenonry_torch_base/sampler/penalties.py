"""Presence, frequency and repetition penalties. Worker process.

Presence and frequency count output tokens (OpenAI); repetition considers prompt and output (CTRL, arXiv:1909.05858,
section 4.1). Counts exist only for rows with a penalty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow


class RowTables:
    """Assignment of the lines of a growing table to rows; free lines are reused."""

    def __init__(self, max_num_seqs: int) -> None:
        self.line = np.full(max_num_seqs, -1, np.int64)
        self._free: list[int] = []
        self.num_lines = 0

    def take(self, row: int) -> int:
        """Return the line of `row`, a free one if it has none yet; equals `num_lines` − 1 when the tables must grow."""
        if self.line[row] < 0:
            if not self._free:
                self._free.append(self.num_lines)
                self.num_lines += 1
            self.line[row] = self._free.pop()
        return int(self.line[row])

    def give_back(self, row: int) -> None:
        if self.line[row] >= 0:
            self._free.append(int(self.line[row]))
            self.line[row] = -1


def grown(table: torch.Tensor, lines: int) -> torch.Tensor:
    """`table` with at least `lines` lines; new ones are zero, and the size doubles."""
    size, width = table.shape
    if size >= lines:
        return table
    bigger = table.new_zeros(max(lines, 2 * size), width)
    bigger[:size] = table
    return bigger


class Penalties(LogitsProcessor):
    """`_counts` i32 by line: output tokens. Only logits of tokens that a row has seen are touched."""

    name: ClassVar[str] = "penalties"

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._tables = RowTables(context.max_num_seqs)
        self._counts = torch.zeros(0, context.vocab_size, dtype=torch.int32, device=context.device)
        # Presence, frequency and repetition penalty by row.
        self._amounts = np.zeros((context.max_num_seqs, 3), np.float32)

    def enter(self, new: NewRow) -> bool:
        sampling = new.sampling
        amounts = (
            sampling.presence_penalty,
            sampling.frequency_penalty,
            sampling.repetition_penalty,
        )
        if amounts == (0.0, 0.0, 1.0):
            return False
        self._amounts[new.row] = amounts
        line = self._tables.take(new.row)
        self._counts = grown(self._counts, self._tables.num_lines)
        first_output = len(new.token_ids) - new.num_output
        output = np.array(new.token_ids[first_output:], np.int64)
        ids = self.context.put(output)
        counts = self._counts[line].zero_()
        # Not bincount, which synchronises with the device for the largest id.
        counts.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))
        return True

    def leave(self, row: int) -> None:
        self._tables.give_back(row)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        put = self.context.put

        # One entry per token that a row has seen, repeats included, i64[M]: its line of the logits, and its column of
        # the history.
        length = step.length.astype(np.int64)
        lines = np.repeat(np.arange(len(length)), length)
        begins = np.cumsum(length) - length
        first = np.repeat(begins, length)
        columns = np.arange(length.sum()) - first
        rows = step.row[lines].astype(np.int64)
        tokens = self.context.history[put(rows), put(columns)].long()
        table_lines = put(self._tables.line[rows])
        counts = self._counts[table_lines, tokens]
        presence, frequency, repetition = put(self._amounts[rows]).unbind(1)

        where = (put(lines), tokens)
        old = logits[where]
        factor = torch.where(old > 0, 1.0 / repetition, repetition)
        new = old * factor
        new = new - frequency * counts
        new = new - presence * (counts > 0)
        logits.index_put_(where, new)  # repeats of a token write the same value

    def accept(self, row: NDArray[np.int32], token_ids: torch.Tensor) -> None:
        lines = self.context.put(self._tables.line[row])
        self._counts[lines, token_ids] += 1
