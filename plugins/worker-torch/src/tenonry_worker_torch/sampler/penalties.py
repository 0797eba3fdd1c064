"""Presence, frequency and repetition penalties. Worker process.

Presence and frequency count output tokens (OpenAI); repetition looks at prompt and output (CTRL, arXiv:1909.05858,
section 4.1). Counts are kept for the rows that ask for a penalty, and for no others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_worker_torch.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow


class RowTables:
    """Which of a growing number of table lines belongs to which row; lines are used again."""

    def __init__(self, max_num_seqs: int) -> None:
        self.line = np.full(max_num_seqs, -1, np.int64)
        self._free: list[int] = []
        self.num_lines = 0

    def take(self, row: int) -> int:
        """The line of `row`, a free one if it has none yet; equals `num_lines` − 1 when the tables must grow."""
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
    if table.shape[0] >= lines:
        return table
    bigger = table.new_zeros(max(lines, 2 * table.shape[0]), table.shape[1])
    bigger[: table.shape[0]] = table
    return bigger


class Penalties(LogitsProcessor):
    """`_counts` i32 by line: output tokens. Only logits of tokens that a row has seen are touched."""

    name: ClassVar[str] = "penalties"

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._tables = RowTables(context.max_num_seqs)
        self._counts = torch.zeros(0, context.vocab_size, dtype=torch.int32, device=context.device)
        self._amounts = np.zeros(
            (context.max_num_seqs, 3), np.float32
        )  # presence, frequency, repetition

    def enter(self, new: NewRow) -> bool:
        wants = new.sampling
        amounts = (wants.presence_penalty, wants.frequency_penalty, wants.repetition_penalty)
        if amounts == (0.0, 0.0, 1.0):
            return False
        self._amounts[new.row] = amounts
        line = self._tables.take(new.row)
        self._counts = grown(self._counts, self._tables.num_lines)
        output = np.array(new.token_ids[len(new.token_ids) - new.num_output :], np.int64)
        ids = torch.as_tensor(output, device=self.context.device)
        self._counts[line] = torch.bincount(ids, minlength=self.context.vocab_size).to(torch.int32)
        return True

    def leave(self, row: int) -> None:
        self._tables.give_back(row)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        def put(array: NDArray[np.generic]) -> torch.Tensor:
            return torch.as_tensor(array, device=logits.device)

        length = step.length.astype(np.int64)
        places = np.repeat(
            np.arange(len(length)), length
        )  # one entry per token of each row, repeats included
        columns = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        tokens = self.context.history[put(step.row[places].astype(np.int64)), put(columns)].long()
        counts = self._counts[put(self._tables.line[step.row[places]]), tokens]
        presence, frequency, repetition = put(self._amounts[step.row[places]]).unbind(1)
        old = logits[put(places), tokens]
        new = old * torch.where(old > 0, 1.0 / repetition, repetition)
        new = new - frequency * counts - presence * (counts > 0)
        logits.index_put_((put(places), tokens), new)  # repeats of a token write the same value

    def accept(self, row: NDArray[np.int32], token_ids: torch.Tensor) -> None:
        lines = torch.as_tensor(self._tables.line[row], device=token_ids.device)
        self._counts[lines, token_ids] += 1
