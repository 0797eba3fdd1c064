"""`bad_words`: token sequences that must not appear in the output. Worker process.

The last token of a sequence is forbidden whenever the output so far ends with the others. All sequences of all rows are
compared at once, padded to the longest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_worker_torch.sampler.processors import LogitsProcessor, ProcessorContext, SampleStep

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
        words = [(row, word) for row, of_row in self._of_row.items() for word in of_row]
        longest = max((len(word) - 1 for _, word in words), default=0)
        self._row = np.array([row for row, _ in words], np.int64)
        self._last = np.array([word[-1] for _, word in words], np.int64)
        self._size = np.array([len(word) - 1 for _, word in words], np.int64)
        prefix = np.zeros((len(words), longest), np.int64)
        for i, (_, word) in enumerate(words):
            prefix[i, longest - len(word) + 1 :] = word[
                :-1
            ]  # right-aligned: the last column is the newest token
        self._prefix = torch.as_tensor(prefix, device=self.context.device)

    def apply(self, logits: torch.Tensor, step: SampleStep) -> None:
        if self._is_stale:
            self._rebuild()
        place = np.full(self.context.max_num_seqs, -1, np.int64)
        place[step.row] = np.arange(len(step.row))
        lines = place[self._row]
        # Only output tokens count: a sequence longer than the output so far cannot be completed now.
        which = np.flatnonzero(
            (lines >= 0) & (self._size <= np.where(lines >= 0, step.num_output[lines], -1))
        )
        if not len(which):
            return
        put = lambda array: torch.as_tensor(array, device=logits.device)  # noqa: E731 - three uses on the next lines
        longest = self._prefix.shape[1]
        columns = step.length[lines[which]][:, None].astype(np.int64) + np.arange(-longest, 0)
        counts = columns >= (step.length[lines[which]] - self._size[which])[:, None]
        newest = self.context.history[put(self._row[which])[:, None], put(np.maximum(columns, 0))]
        matches = ((newest == self._prefix[put(which)]) | ~put(counts)).all(1)
        # Added, not assigned: several sequences of a row may end with the same token.
        change = torch.where(matches, float("-inf"), 0.0)
        logits.index_put_((put(lines[which]), put(self._last[which])), change, accumulate=True)
