"""Multi-token steps of the fake worker, in plain Python. Worker process."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tenonry.step import I32, ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry_scheduling.columns import BatchState, StepInputs
from tenonry_testkit.fakes.logprobs import round_logprobs


class FakeRounds:
    """`compute` runs one pass over rows whose columns are in `state`; `new_rows`: rows as sent.

    A row leaves a multi-token step early if its outputs are a multiple of `short`; 0: never. `drafts`: report the
    tokens after a row's first one as drafted.
    """

    def __init__(
        self,
        state: BatchState,
        new_rows: list[NewRow | None],
        compute: Callable[[SchedulerOutput, StepInputs], ModelRunnerOutput],
        short: int,
        *,
        drafts: bool,
    ) -> None:
        self._state = state
        self._new_rows = new_rows
        self._compute = compute
        self._short = short
        self._drafts = drafts

    def play(self, output: SchedulerOutput, first: ModelRunnerOutput) -> ModelRunnerOutput:
        """Return the result of a multi-token step whose first pass is computed."""
        tokens = dict(_pairs(first))
        failed = _failures(first)
        logprobs = [first.logprobs]
        latest = first
        for _ in range(output.round_tokens - 1):
            going = [row for row, ids in _pairs(latest) if not self._has_ended(row, ids[0])]
            if not going:
                break
            latest = self._decode(_one_each(output.step_id, going))
            for row, ids in _pairs(latest):
                tokens[row] += ids
            failed |= _failures(latest)
            logprobs.append(latest.logprobs)
        for row in failed:
            tokens.pop(row, None)
        offsets = [0]
        token_ids: list[int] = []
        for ids in tokens.values():
            token_ids += ids
            offsets.append(len(token_ids))
        num_drafts = len(tokens) * self._drafts
        return ModelRunnerOutput(
            step_id=output.step_id,
            num_drafts=num_drafts,
            num_drafted=num_drafts * (output.round_tokens - 1),
            num_accepted=(len(token_ids) - len(tokens)) * self._drafts,
            row=_column(tokens),
            offsets=_column(offsets),
            token_ids=_column(token_ids),
            logprobs=round_logprobs(logprobs, failed),
            failed_row=_column(failed),
            failed_code=_column(failed.values()),
        )

    def _decode(self, output: SchedulerOutput) -> ModelRunnerOutput:
        return self._compute(output, self._state.apply(output))

    def _has_ended(self, row: int, token: int) -> bool:
        """Return True if the row receives no more tokens in this step."""
        new = self._new_rows[row]
        num_output = int(self._state.num_output[row])
        if new is None or (self._short and num_output % self._short == 0):
            return True
        return token in new.stop_token_ids and num_output >= new.sampling.min_tokens


def _pairs(result: ModelRunnerOutput) -> list[tuple[int, list[int]]]:
    """Rows of one pass with their tokens."""
    rows = result.row.tolist()
    token_ids = result.token_ids.tolist()
    pairs = zip(rows, token_ids, strict=True)
    return [(row, [token]) for row, token in pairs]


def _failures(result: ModelRunnerOutput) -> dict[int, int]:
    rows = result.failed_row.tolist()
    codes = result.failed_code.tolist()
    pairs = zip(rows, codes, strict=True)
    return dict(pairs)


def _one_each(step_id: int, rows: list[int]) -> SchedulerOutput:
    """A step in which each row computes its last sampled token."""
    count = len(rows)
    ones = np.ones(count, np.int32)
    return SchedulerOutput(
        step_id=step_id,
        row=_column(rows),
        num_tokens=ones,
        next_token=-ones,
        samples=ones > 0,
        generation=ones,
        total_tokens=count,
    )


def _column(values: object) -> I32:
    return np.array(list(values), np.int32)  # type: ignore[call-overload]
