"""Samples at the positions of a step that verifies drafts, in order, as if each had been a pass. Worker process.

Each position is sampled from the model's own logits, with the randomness of that position and the sampler's state for
the tokens before it; a draft is accepted if it is the sampled token. Greedy rows without other parameters are sampled
at all positions together, others up to their first rejected draft.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tenonry.step import ModelRunnerOutput, TokenLogprobs
from tenonry_torch_base.rounds import joined_logprobs
from tenonry_torch_base.sampler.processors import SampleStep

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from numpy.typing import NDArray

    from tenonry.step import I32
    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_torch_base.sampler.sampler import Sampled, Sampler

    Ends = Callable[[I32, I32, I32], NDArray[np.bool_]]

UNKNOWN = -1


class Position(NamedTuple):
    """Sampled tokens of rows at `places` of the step at their positions number `number`."""

    places: NDArray[np.intp]
    number: int
    sampled: Sampled


class Verification:
    """One step: `token_ids` i64[R, W + 1], −1 after a row's tokens; the last column is its failure code, or 0."""

    def __init__(self, inputs: StepInputs, state: BatchState) -> None:
        self.row = inputs.row
        self.first = inputs.query_start_loc[:-1].astype(np.int64)  # of each row's lines
        self.num_tokens = inputs.num_tokens
        self.start = inputs.start.astype(np.int64)
        self.num_output = state.num_output[inputs.row] - 1  # before the step
        self.token_ids = np.full((len(self.row), int(self.num_tokens.max()) + 1), UNKNOWN, np.int64)
        self.failure = self.token_ids[:, -1]
        self.failure[:] = 0
        self.positions: list[Position] = []

    @property
    def count(self) -> I32:
        """Tokens of each row."""
        count: I32 = (self.token_ids[:, :-1] != UNKNOWN).sum(axis=1, dtype=np.int32)
        return count

    def at(self, places: NDArray[np.intp], number: int) -> SampleStep:
        """The sampling of position `number` of some rows."""
        return SampleStep(
            self.row[places],
            self.num_output[places] + number,
            (self.start[places] + 1 + number).astype(np.int32),
        )


class Verifier:
    """`ends(rows, token_ids, num_output)`: mask of tokens that end their rows."""

    def __init__(self, sampler: Sampler, state: BatchState, ends: Ends) -> None:
        self._sampler = sampler
        self._state = state
        self._ends = ends

    def prepare(self, inputs: StepInputs) -> None:
        """Prepare the first positions before the model runs."""
        if self._sampler.prepares:
            step = Verification(inputs, self._state)
            self._sampler.prepare(step.at(np.arange(len(step.row)), 0))

    def sample(self, logits: torch.Tensor, inputs: StepInputs) -> Verification:
        """`logits` [T, vocabulary] of all tokens of the step."""
        step = Verification(inputs, self._state)
        plain = self._sampler.columns.is_plain[step.row]
        plain_places = np.flatnonzero(plain)
        if len(plain_places):
            self._verify_plain(logits, step, plain_places)
        others = np.flatnonzero(~plain)
        if len(others):
            self._verify_rest(logits, step, others)
        return step

    def _verify_plain(
        self, logits: torch.Tensor, step: Verification, places: NDArray[np.intp]
    ) -> None:
        put = self._sampler.context.put
        counts = step.num_tokens[places]
        of_line = np.repeat(places, counts)
        number = np.arange(len(of_line)) - np.repeat(np.cumsum(counts) - counts, counts)
        lines = step.first[of_line] + number
        asked = SampleStep(
            step.row[of_line],
            step.num_output[of_line] + number,
            (step.start[of_line] + 1 + number).astype(np.int32),
        )
        is_all = len(lines) == len(logits)
        sampled = self._sampler.sample(logits if is_all else logits[put(lines)], asked)
        ids = sampled.token_ids.cpu().numpy()
        failure = sampled.failure.cpu().numpy()
        begin = 0
        for place, count in zip(places.tolist(), counts.tolist(), strict=True):
            end = begin + count
            self._keep_right(step, place, ids[begin:end], failure[begin:end])
            begin = end

    def _keep_right(
        self, step: Verification, place: int, ids: NDArray[np.int64], failure: I32
    ) -> None:
        """Keep one row's tokens up to the first that is no draft, ends the row, or failed."""
        row = step.row[place]
        begin = int(step.start[place]) + 1
        count = len(ids)
        drafts = self._state.token_ids[row, begin : begin + count - 1]
        num_output = step.num_output[place] + 1 + np.arange(count)
        rows = np.full(count, row, np.int32)
        is_last = failure != 0
        is_last[: count - 1] |= ids[:-1] != drafts
        is_last |= self._ends(rows, ids.astype(np.int32), num_output)
        is_last[-1] = True
        kept = int(is_last.argmax()) + 1
        step.token_ids[place, :kept] = ids[:kept]
        step.failure[place] = failure[kept - 1]
        self._state.token_ids[row, begin : begin + kept] = ids[:kept]

    def _verify_rest(
        self, logits: torch.Tensor, step: Verification, places: NDArray[np.intp]
    ) -> None:
        put = self._sampler.context.put
        state = self._state
        number = 0
        while len(places):
            lines = step.first[places] + number
            is_all = len(lines) == len(logits)
            asked = step.at(places, number)
            sampled = self._sampler.sample(logits if is_all else logits[put(lines)], asked)
            step.positions.append(Position(places, number, sampled))
            ids = sampled.token_ids.cpu().numpy()
            failure = sampled.failure.cpu().numpy()
            rows = step.row[places]
            columns = step.start[places] + 1 + number
            drafts = state.token_ids[rows, columns]
            step.token_ids[places, number] = ids
            step.failure[places] = failure
            state.token_ids[rows, columns] = ids
            has_more = number + 1 < step.num_tokens[places]
            goes_on = has_more & (ids == drafts) & (failure == 0)
            goes_on &= ~self._ends(rows, ids.astype(np.int32), asked.num_output + 1)
            places = places[goes_on]
            number += 1

    # ------------------------------------------------------------------ on every rank

    def settle(self, step: Verification) -> None:
        """Advance the columns to the end of the accepted tokens; later values are void."""
        state = self._state
        count = step.count
        rows = step.row
        number = np.arange(step.token_ids.shape[1] - 1)
        is_token = number < count[:, None]
        columns = (step.start[:, None] + 1 + number)[is_token]
        state.token_ids[np.repeat(rows, count), columns] = step.token_ids[:, :-1][is_token]
        state.num_computed[rows] = step.start + count
        state.num_output[rows] = step.num_output + count

    def answer(self, step_id: int, step: Verification) -> ModelRunnerOutput:
        """Rows that failed have no tokens."""
        sound = step.failure == 0
        count = step.count[sound]
        offsets = np.zeros(len(count) + 1, np.int32)
        np.cumsum(count, out=offsets[1:])
        token_ids = step.token_ids[sound, :-1]
        return ModelRunnerOutput(
            step_id=step_id,
            row=step.row[sound],
            offsets=offsets,
            token_ids=token_ids[token_ids != UNKNOWN].astype(np.int32),
            logprobs=_logprobs(step),
            failed_row=step.row[~sound],
            failed_code=step.failure[~sound].astype(np.int32),
        )


def _logprobs(step: Verification) -> TokenLogprobs | None:
    """Log-probabilities of all positions, the tokens of a row in order."""
    parts = []
    for position in step.positions:
        sampled = position.sampled
        if sampled.logprobs is None or sampled.logprob_lines is None:
            continue
        rows = step.row[position.places[sampled.logprob_lines]]
        parts.append(TokenLogprobs(rows, *sampled.logprobs.numpy()))
    return joined_logprobs(parts, step.row[step.failure != 0])
