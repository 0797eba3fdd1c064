"""Token budget of one step. Engine process."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tenonry.step import I32
from tenonry_scheduling.rows import Index

# Maximum tokens per step of prompts with log-probabilities. Each costs the worker a row of logits and the front end up
# to 21 entries with text, and every other row of the step waits for that work.
MAX_PROMPT_LOGPROB_TOKENS = 256


class StepBudget:
    """Remaining budget of one step: `tokens_left` in total, `prompt_logprob_tokens_left` for prompts with
    log-probabilities.

    With `chunked_prefill` a row may run a part of its tokens. Without it, a row runs whole or not at all, except rows
    too long for any step; one prompt with log-probabilities runs whole, regardless of its length.
    """

    def __init__(self, num_tokens: int, *, chunked_prefill: bool) -> None:
        self.num_tokens = num_tokens
        self.tokens_left = num_tokens
        self.prompt_logprob_tokens_left = MAX_PROMPT_LOGPROB_TOKENS
        self.chunked_prefill = chunked_prefill

    def fit(self, wanted: int, *, prompt_logprobs: bool) -> int:
        """Number of `wanted` tokens that one row may compute."""
        if prompt_logprobs:
            left = self.prompt_logprob_tokens_left
            if left <= 0:
                return 0
            if self.chunked_prefill:
                wanted = min(wanted, left)
        if wanted <= self.tokens_left:
            return wanted
        may_split = self.chunked_prefill or wanted > self.num_tokens
        return self.tokens_left if may_split else 0

    def cut(self, rows: Index, wanted: I32) -> tuple[Index, I32]:
        """Return the rows that fit, and their tokens: decodes first, then earlier rows; the last one may be cut."""
        decodes_first = np.argsort(wanted > 1, kind="stable")
        rows = rows[decodes_first]
        wanted = wanted[decodes_first]
        count = np.minimum(wanted, _left_for_each(wanted, self.tokens_left))
        if not self.chunked_prefill:
            is_split = (count < wanted) & (wanted <= self.num_tokens)
            count[is_split] = 0
        return _without_empty(rows, count)

    def cut_prompt_logprobs(
        self, rows: Index, wanted: I32, prompt_logprob_rows: Collection[int]
    ) -> tuple[Index, I32]:
        """As `cut`, for the share of `prompt_logprob_rows`, earlier rows first; other rows keep their tokens.

        Without chunked prefill there are none: their prompts are in no cache, and a request starts with all of it.
        """
        has_logprobs = np.isin(rows, list(prompt_logprob_rows))
        of_prompts = np.where(has_logprobs, wanted, 0)
        share = np.minimum(of_prompts, _left_for_each(of_prompts, self.prompt_logprob_tokens_left))
        return _without_empty(rows, np.where(has_logprobs, share, wanted))


def _left_for_each(wanted: I32, left: int) -> I32:
    """Part of `left` that remains before each row."""
    before = np.cumsum(wanted) - wanted
    remaining: I32 = np.maximum(left - before, 0)
    return remaining


def _without_empty(rows: Index, count: I32) -> tuple[Index, I32]:
    keep = count.nonzero()[0]
    return rows[keep], count[keep].astype(np.int32)
