"""Multi-token decode steps: conditions and length. Engine process.

Such a step saves the engine's own work for all but one of its tokens. New requests wait for its end, so it runs only
while the queue is empty, and decodes one token plus as many as the rows decode in `MAX_WAIT_S`.
"""

from __future__ import annotations

import math

import numpy as np

from tenonry.step import I32, ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.lifecycle import Lifecycle
from tenonry_scheduling.rows import Index
from tenonry_scheduling.settings import WorkerDrafter

MAX_WAIT_S = 0.005
# Weight of the latest time per token in the mean. A single delayed step predicts little.
FORGETTING = 0.2


class Rounds:
    """Multi-token steps of one scheduler with one step in flight."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._rows = lifecycle.rows
        self._clock = lifecycle.context.clock
        context = lifecycle.context
        # Blocks of a sliding window are counted for rows that compute no more than the budget in one step.
        self._most = min(context.max_round_tokens, context.config.step_token_budget)
        self._token_s = math.inf  # mean time of one token of every row
        self._num_rows = 0  # for this number of rows
        self._is_drafted = context.config.section(WorkerDrafter).drafter is not None
        self._began = math.nan  # start of the current step, if all its rows decode
        self._draft_counts = (0, 0, 0)

    def extend(self, row: Index, output: SchedulerOutput, now: float) -> NewBlocks | None:
        """Extend a complete step to several tokens per row; returns the new blocks.

        None, without a change, if each row samples one token.
        """
        self._began = math.nan
        if not self._is_possible(row, output):
            return None
        self._began = now
        if len(row) > self._num_rows:
            self._token_s = math.inf
        self._num_rows = len(row)
        columns = self._rows
        room = int((columns.limit[row] - columns.num_tokens[row]).min())
        ahead = min(self._num_ahead(), room)
        if ahead < 1:
            return None
        end = columns.num_computed[row]
        # Blocks outside the window during the whole step are released.
        columns.num_computed[row] = end - 1
        added = self._lifecycle.blocks.grow(row, end + ahead)
        columns.num_computed[row] = end
        if added is None:
            return None
        for column in (columns.num_computed, columns.num_tokens, columns.pending):
            column[row] += ahead
        output.round_tokens = ahead + 1
        return added

    def _is_possible(self, row: Index, output: SchedulerOutput) -> bool:
        """Return True if all requests run in this step, each decodes, and none needs the engine after every token.

        A worker that verifies drafts returns log-probabilities of all tokens.
        """
        num_rows = len(row)
        return (
            num_rows == output.total_tokens == len(self._lifecycle.requests)
            and not output.new
            and (self._is_drafted or not self._rows.logprob_rows)
            and not self._lifecycle.blocks.takes_snapshots
            and np.count_nonzero(output.samples) == num_rows
        )

    def _num_ahead(self) -> int:
        # Drafted tokens are timed by the worker: verifying many in one pass takes little longer than one.
        if self._is_drafted or self._token_s == 0:
            return self._most - 1
        return int(min(self._most - 1, MAX_WAIT_S / self._token_s))

    def answered(self, result: ModelRunnerOutput) -> None:
        """Record the time per token of the completed step, and count drafts."""
        if result.num_drafts:
            drafts, tokens, accepted = self._draft_counts
            self._draft_counts = (
                drafts + result.num_drafts,
                tokens + result.num_drafted,
                accepted + result.num_accepted,
            )
        if math.isnan(self._began) or not len(result.row):
            return
        most = int(num_of_each(result).max())
        token_s = (self._clock() - self._began) / most
        if math.isinf(self._token_s):
            self._token_s = token_s
        self._token_s += FORGETTING * (token_s - self._token_s)

    def take_draft_counts(self) -> tuple[int, int, int]:
        """Return drafts, their tokens, and accepted tokens since the last call."""
        counts = self._draft_counts
        self._draft_counts = (0, 0, 0)
        return counts


def num_of_each(result: ModelRunnerOutput) -> I32:
    """Number of tokens of each row that sampled."""
    offsets = result.offsets
    count: I32 = offsets[1:] - offsets[:-1]
    return count


class Ragged:
    """Sampled tokens of a multi-token step: `token_ids` i32[R, K], of which the first `count` i32[R] per row are valid.

    `is_whole`: all are valid.
    """

    def __init__(self, result: ModelRunnerOutput, num_tokens: int) -> None:
        self.places = np.arange(num_tokens)
        self.count = num_of_each(result)
        shape = (len(self.count), num_tokens)
        self.is_whole = len(result.token_ids) == shape[0] * num_tokens  # no row can have more
        if self.is_whole:
            self.token_ids = result.token_ids.reshape(shape)
        else:
            self.token_ids = np.full(shape, -1, np.int32)
            self.token_ids[self._is_kept()] = result.token_ids

    def _is_kept(self) -> np.ndarray:
        """Mask bool[R, K] of valid tokens."""
        kept: np.ndarray = self.places < self.count[:, None]
        return kept

    def kept(self) -> I32:
        """Valid ids, row by row."""
        ids: I32 = self.token_ids.ravel()
        return ids if self.is_whole else self.token_ids[self._is_kept()]

    def select(self, wanted: np.ndarray) -> None:
        """Drop the other rows."""
        self.count = self.count[wanted]
        self.token_ids = self.token_ids[wanted]

    def cut(self, is_last: np.ndarray) -> np.ndarray:
        """End each row at the first token marked by `is_last` bool[R, K]; returns the mask of ended rows."""
        is_last = is_last & self._is_kept()
        ends: np.ndarray = is_last.any(axis=1)
        if np.count_nonzero(ends):
            first = is_last.argmax(axis=1) + 1
            self.count = np.where(ends, first, self.count).astype(np.int32)
            self.is_whole = False
        return ends
