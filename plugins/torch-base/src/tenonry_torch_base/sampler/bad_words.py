"""`bad_words`: token sequences that must not appear in the output. Worker process.

The last token of a sequence is forbidden whenever the output so far ends with the others. All sequences of all rows are
compared in one operation, padded to the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

if TYPE_CHECKING:
    from tenonry.step import NewRow


class BadWords(LogitsProcessor):
    """Columns by sequence: `_row`, `_last` (its last token), `_size` (tokens before it), `_prefix` [sequences, max]."""

    name: ClassVar[str] = "bad_words"

    def __init__(self, context: ProcessorContext) -> None:
        super().__init__(context)
        self._of_row: dict[int, list[tuple[int, ...]]] = {}
        self._is_stale = True

    def enter(self, new: NewRow) -> bool:
        words = [word for word in new.bad_words if word and max(word) < self.context.vocab_size]
        if not words:
            return False
        self._of_row[new.row] = words
        self._is_stale = True
        return True

    def leave(self, row: int) -> None:
        if self._of_row.pop(row, None) is not None:
            self._is_stale = True

    def _rebuild(self) -> None:
        self._is_stale = False
        rows: list[int] = []
        words: list[tuple[int, ...]] = []
        for row, of_row in self._of_row.items():
            rows += [row] * len(of_row)
            words += of_row
        last = [word[-1] for word in words]
        sizes = [len(word) - 1 for word in words]
        longest = max(sizes, default=0)
        self._row = np.array(rows, np.int64)
        self._last = np.array(last, np.int64)
        self._size = np.array(sizes, np.int64)
        prefix = np.zeros((len(words), longest), np.int64)
        for i, word in enumerate(words):
            # Right-aligned: the last column is the newest token.
            begin = longest - sizes[i]
            prefix[i, begin:] = word[:-1]
        self._prefix = self.context.put(prefix)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        if self._is_stale:
            self._rebuild()
        put = self.context.put

        # The sequences whose row samples, i64[M]. Only output tokens count: a sequence longer than the output so far
        # cannot be completed now.
        lines = step.place_of(self._row, self.context.max_num_seqs)
        num_output = np.where(lines >= 0, step.num_output[lines], -1)
        may_match = (lines >= 0) & (self._size <= num_output)
        which = np.flatnonzero(may_match)
        if not len(which):
            return

        # The newest tokens of each sequence's row, [M, longest], and the compared ones.
        longest = self._prefix.shape[1]
        length = step.length[lines[which]]
        end = length[:, None].astype(np.int64)
        columns = end + np.arange(-longest, 0)
        first = length - self._size[which]
        counts = columns >= first[:, None]
        rows = put(self._row[which])[:, None]
        inside = put(np.maximum(columns, 0))
        newest = self.context.history[rows, inside]
        is_equal = newest == self._prefix[put(which)]
        matches = (is_equal | ~put(counts)).all(1)

        # Added, not assigned: several sequences of a row may end with the same token.
        change = torch.where(matches, float("-inf"), 0.0)
        where = (put(lines[which]), put(self._last[which]))
        logits.index_put_(where, change, accumulate=True)
