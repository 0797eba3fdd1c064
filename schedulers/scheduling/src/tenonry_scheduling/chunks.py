"""Ends of prompt chunks within the step budget: at state snapshots, at the limit for prompts with log-probabilities,
before images that this step does not encode, and never inside an indivisible piece. Engine process.
"""

from __future__ import annotations

from tenonry.request import Request
from tenonry.step import I32
from tenonry_scheduling.budget import StepBudget
from tenonry_scheduling.lifecycle import Lifecycle
from tenonry_scheduling.rows import Index
from tenonry_scheduling.whole import pieces_after, uncut


class ChunkLimits:
    """Limits of one step's chunks; decoding rows are not affected. `apply`: True if any row may be limited."""

    __slots__ = ("_blocks", "_budget", "_encoder", "_rows", "_snapshots", "_whole")

    def __init__(self, lifecycle: Lifecycle, budget: StepBudget) -> None:
        self._rows = lifecycle.rows
        self._blocks = lifecycle.blocks
        self._encoder = lifecycle.encoder
        self._whole = lifecycle.whole
        self._budget = budget
        self._snapshots = lifecycle.blocks.takes_snapshots and budget.chunked_prefill

    @property
    def apply(self) -> bool:
        return self._snapshots or self.count

    @property
    def count(self) -> bool:
        """Return True if `advance` has state to update."""
        encoder = self._encoder
        if encoder is not None and encoder.to_encode:
            return True
        if self._whole.by_row:
            return True
        return bool(self._rows.prompt_logprob_rows)

    def fit(self, row: int, uncomputed: int, wanted: int | None) -> int:
        """Number of its uncomputed tokens that the row may compute."""
        count = uncomputed if wanted is None else min(uncomputed, wanted)
        if self._snapshots:
            count = self._blocks.cut_row(row, count)
        if self._encoder is not None:
            count = self._encoder.fit(row, int(self._rows.num_computed[row]), count)
        has_logprobs = row in self._rows.prompt_logprob_rows
        count = self._budget.fit(count, prompt_logprobs=has_logprobs)
        if count > 0 and row in self._whole.by_row:
            start = int(self._rows.num_computed[row])
            count = self._whole.fit(row, start, count, self._budget.tokens_left)
        return count

    def fit_images(self, request: Request, start: int, wanted: int) -> tuple[int, bool]:
        """Return the number of `wanted` tokens a starting request may compute, and True if an image has to wait."""
        if self._encoder is None or wanted <= 0:
            return wanted, False
        whole = uncut(pieces_after(request, start), start, wanted, self._budget.tokens_left)
        count = self._encoder.fit_first(request, start, whole)
        return count, count <= 0

    def cut(self, rows: Index, count: I32) -> tuple[Index, I32]:
        """Return rows that may compute tokens, with their numbers; earlier rows first."""
        if self._snapshots:
            count = self._blocks.cut(rows, count)
        if self._rows.prompt_logprob_rows:
            limited = self._rows.prompt_logprob_rows
            rows, count = self._budget.cut_prompt_logprobs(rows, count, limited)
        if self._encoder is not None and self._encoder.to_encode:
            start = self._rows.num_computed[rows]
            rows, count = self._encoder.cut(rows, start, count)
        return self.uncut(rows, count, may_extend=True)

    def uncut(self, rows: Index, count: I32, *, may_extend: bool) -> tuple[Index, I32]:
        """Shorten chunks that would end in an indivisible piece, or extend them to its end."""
        if not self._whole.by_row:
            return rows, count
        start = self._rows.num_computed[rows]
        return self._whole.fit_rows(rows, start, count, may_extend=may_extend)

    def advance(self, rows: list[int], num_tokens: list[int]) -> None:
        """Record scheduled tokens; a row whose prompt is computed no longer counts."""
        columns = self._rows
        for row, count in zip(rows, num_tokens, strict=True):
            end = int(columns.num_computed[row])
            if self._encoder is not None:
                self._encoder.advance(row, end)
                self._whole.advance(row, end)
            if row in columns.prompt_logprob_rows:
                self._budget.prompt_logprob_tokens_left -= count
                if end >= columns.request(row).num_prompt_tokens:
                    columns.prompt_logprob_rows.discard(row)
