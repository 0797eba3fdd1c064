"""Multi-token steps, run as one pass after another. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from tenonry.step import KNOWN_TO_WORKER, ModelRunnerOutput, SchedulerOutput, TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from tenonry.step import I32, NewRow, StepFuture
    from tenonry_scheduling.columns import BatchState

UNKNOWN = -1


class RowEnds(NamedTuple):
    """End conditions of R rows: one of `stop_ids` i64[R, W] (−1 fills), but none of the next `free` i64[R] tokens."""

    stop_ids: NDArray[np.int64]
    free: NDArray[np.int64]


class SeveralPasses(Protocol):
    """Several passes of a multi-token step in one call."""

    def accepts(self, row: I32, /) -> bool:
        """Return True if these rows can be decoded so; otherwise passes run one by one."""
        ...

    def start(self, output: SchedulerOutput, rounds: Rounds, /) -> None:
        """Apply the row changes of a step without new rows, before its first pass."""
        ...

    def __call__(self, step_id: int, row: I32, most: int, ends: RowEnds, /) -> ModelRunnerOutput:
        """Decode up to `most` tokens of each row; afterwards the state includes them."""
        ...


class Rounds:
    """Runs multi-token steps. End conditions of rows: stop_ids i64[max_num_seqs, W] (−1 fills), min_output
    i32[max_num_seqs].

    `execute` runs one pass as an ordinary step; `state` has its columns afterwards.
    """

    def __init__(
        self,
        state: BatchState,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput | StepFuture],
        several: SeveralPasses | None = None,
    ) -> None:
        size = len(state.handle)
        self._state = state
        self._execute = execute
        self.several = several
        self._stop_ids = np.full((size, 2), UNKNOWN, np.int64)
        self.min_output = np.zeros(size, np.int32)

    def enter(self, new: NewRow) -> None:
        """Add a new or returning row."""
        ids = new.stop_token_ids
        width = self._stop_ids.shape[1]
        if len(ids) > width:
            wider = np.full((len(self._stop_ids), len(ids)), UNKNOWN, np.int64)
            wider[:, :width] = self._stop_ids
            self._stop_ids = wider
        self._stop_ids[new.row] = UNKNOWN
        self._stop_ids[new.row, : len(ids)] = ids
        longest = self._state.token_ids.shape[1]
        self.min_output[new.row] = min(new.sampling.min_tokens, longest)

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Passes until each row has its tokens, has ended, or has failed."""
        several = self.several
        row = output.row
        if several and not (output.new or output.prepare) and several.accepts(row):
            several.start(output, self)
            return several(output.step_id, row, output.round_tokens, self.row_ends(row))
        passes = [self._pass(output)]
        while len(passes) < output.round_tokens:
            row = self._going(passes[-1])
            if not len(row):
                break
            passes.append(self._pass(next_pass(output.step_id, row)))
        return joined(passes)

    def row_ends(self, row: I32) -> RowEnds:
        free = self.min_output[row] - self._state.num_output[row] - 1
        return RowEnds(self._stop_ids[row], np.maximum(free, 0).astype(np.int64))

    def _pass(self, output: SchedulerOutput) -> ModelRunnerOutput:
        answer = self._execute(output)
        return answer if isinstance(answer, ModelRunnerOutput) else answer.result()

    def _going(self, result: ModelRunnerOutput) -> NDArray[np.int32]:
        """The rows whose last token does not end them."""
        row = result.row
        last = result.token_ids[result.offsets[1:] - 1]
        going: NDArray[np.int32] = row[~self.ends(row, last, self._state.num_output[row])]
        return going

    def ends(
        self, row: NDArray[np.int32], token_ids: NDArray[np.int32], num_output: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Mask of the tokens that end their rows; `num_output`: each row's number of outputs, the token included."""
        is_stop_id = (token_ids[:, None] == self._stop_ids[row]).any(axis=1)
        may_end = num_output >= self.min_output[row]
        ended: NDArray[np.bool_] = is_stop_id & may_end
        return ended

    def leave(self, row: int) -> None:
        """A row is free."""


def next_pass(step_id: int, row: NDArray[np.int32]) -> SchedulerOutput:
    """Each row computes the token that it sampled last."""
    count = len(row)
    return SchedulerOutput(
        step_id=step_id,
        row=row,
        num_tokens=np.ones(count, np.int32),
        next_token=np.full(count, KNOWN_TO_WORKER, np.int32),
        samples=np.ones(count, np.bool_),
        generation=np.zeros(count, np.int32),
        total_tokens=count,
    )


def joined(passes: list[ModelRunnerOutput]) -> ModelRunnerOutput:
    """Merge the passes of a multi-token step into one result. Rows keep their order; failed rows lose the step's
    tokens.
    """
    if len(passes) == 1:
        return passes[0]
    failed = np.concatenate([each.failed_row for each in passes])
    row = passes[0].row
    # The place of each token's row in the first pass, which contains all rows.
    of_token = np.concatenate([np.repeat(each.row, np.diff(each.offsets)) for each in passes])
    order_of_rows = np.argsort(row)
    place = order_of_rows[np.searchsorted(row, of_token, sorter=order_of_rows)]
    tokens = np.concatenate([each.token_ids for each in passes])
    order = np.argsort(place, kind="stable")
    if len(failed):
        is_sound = np.isin(row, failed, invert=True)
        order = order[is_sound[place[order]]]
    count = np.bincount(place[order], minlength=len(row))
    if len(failed):
        row = row[is_sound]
        count = count[is_sound]
    offsets = np.zeros(len(row) + 1, np.int32)
    np.cumsum(count, out=offsets[1:])
    return msgspec.structs.replace(
        passes[0],
        row=row,
        offsets=offsets,
        token_ids=tokens[order],
        failed_row=failed,
        failed_code=np.concatenate([each.failed_code for each in passes]),
        logprobs=joined_logprobs([each.logprobs for each in passes], failed),
    )


def joined_logprobs(
    parts: Sequence[TokenLogprobs | None], failed: NDArray[np.int32]
) -> TokenLogprobs | None:
    """Log-probabilities of one pass after another; failed rows have none."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    width = max(part.token_ids.shape[1] for part in given)
    row = np.concatenate([part.row for part in given])
    is_sound = np.isin(row, failed, invert=True)
    return TokenLogprobs(
        row[is_sound],
        np.concatenate([_widened(part.token_ids, width) for part in given])[is_sound],
        np.concatenate([_widened(part.logprobs, width) for part in given])[is_sound],
        np.concatenate([part.rank for part in given])[is_sound],
    )


def _widened(table: NDArray[Any], width: int) -> NDArray[Any]:
    """Lines with fewer tokens are filled up with their chosen one."""
    missing = width - table.shape[1]
    return np.concatenate([table, np.repeat(table[:, :1], missing, axis=1)], axis=1)
