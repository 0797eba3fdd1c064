"""Multi-token steps with drafts: a pass of the model may verify drafts, which use the slots of the step. Worker
process.

Such a step ends with its slots, when no row continues, and when another pass would exceed the time that new requests
should wait: with a model that needs long for one token, each step is a single pass, with or without drafts.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tenonry_torch_base.rounds import Rounds, joined, next_pass

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry.step import I32, ModelRunnerOutput, NewRow, SchedulerOutput, StepFuture
    from tenonry_drafters.drafts import Drafts, Proposal
    from tenonry_scheduling.columns import BatchState
    from tenonry_torch_base.rounds import SeveralPasses

MAX_WAIT_S = 0.005


class DraftCounts:
    """Drafts of a multi-token step, their tokens, and the accepted ones."""

    __slots__ = ("num_accepted", "num_drafted", "num_drafts")

    def __init__(self) -> None:
        self.num_drafts = 0
        self.num_drafted = 0
        self.num_accepted = 0


class DraftedRounds(Rounds):
    """`verify` runs a step whose rows have drafts after their pending tokens, and returns the sampled tokens."""

    def __init__(
        self,
        state: BatchState,
        execute: Callable[[SchedulerOutput], ModelRunnerOutput | StepFuture],
        verify: Callable[[SchedulerOutput], ModelRunnerOutput],
        drafts: Drafts,
        several: SeveralPasses | None = None,
    ) -> None:
        super().__init__(state, execute, several)
        self._verify = verify
        self.drafts = drafts

    def enter(self, new: NewRow) -> None:
        super().enter(new)
        self.drafts.enter(new)

    def leave(self, row: int) -> None:
        self.drafts.leave(row)

    def run(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self._take_known(output)
        clock = time.perf_counter
        left = np.zeros(len(self._state.handle), np.int32)  # slots of each row
        left[output.row] = output.round_tokens
        counts = DraftCounts()
        passes: list[ModelRunnerOutput] = []
        step = output
        numbers = output.row.tolist()
        deadline = math.inf
        pass_s = math.inf
        is_over = False
        while True:
            proposal = self.drafts.propose(step.row, numbers, left, is_over=is_over)
            if proposal is None:
                break
            begin = clock()
            if proposal.total:
                result = self._verified(step, proposal)
            else:
                most = int((deadline - begin) / pass_s) if passes else 1
                result = self._plain(step, numbers, min(most, int(left[step.row].min())))
            end = clock()
            pass_s = end - begin
            if proposal.total:
                self._take_in(step.row, proposal, result, left, counts, pass_s)
            else:
                pass_s = self._take_plain(numbers, result, left, pass_s)
            passes.append(result)
            row = self._going(result)
            if not len(row) or not left[row].all():
                break
            if len(passes) == 1:
                deadline = end + MAX_WAIT_S
            is_over = end + pass_s > deadline
            if len(row) < len(numbers):
                numbers = row.tolist()
            step = next_pass(output.step_id, row)
        answer = joined(passes)
        if not counts.num_drafted:
            return answer
        return msgspec.structs.replace(
            answer,
            num_drafted=counts.num_drafted,
            num_accepted=counts.num_accepted,
            num_drafts=counts.num_drafts,
        )

    def _plain(self, step: SchedulerOutput, numbers: list[int], most: int) -> ModelRunnerOutput:
        """Run a pass without drafts, or up to `most` in one call while the drafter is inactive."""
        if most > 1 and self.drafts.rests(numbers):
            row = step.row
            if self.several is not None and self.several.accepts(row):
                return self.several(step.step_id, row, most, self.row_ends(row))
        return self._pass(step)

    def _take_plain(
        self, numbers: list[int], result: ModelRunnerOutput, left: I32, seconds: float
    ) -> float:
        """Count the tokens of passes without drafts; returns the duration of one of them."""
        made = np.diff(result.offsets)
        left[result.row] -= made
        count = int(made.max(initial=1))
        for _ in range(count):
            self.drafts.controller.plain(numbers, seconds / count)
        return seconds / count

    def _take_in(
        self,
        rows: I32,
        proposal: Proposal,
        result: ModelRunnerOutput,
        left: I32,
        counts: DraftCounts,
        seconds: float,
    ) -> None:
        """Count the tokens of a pass with drafts."""
        count = np.zeros_like(left)
        count[result.row] = np.diff(result.offsets)
        left -= count
        accepted = np.clip(count[rows] - 1, 0, proposal.count)
        counts.num_drafts += np.count_nonzero(proposal.count)
        counts.num_drafted += proposal.total
        counts.num_accepted += int(accepted.sum())
        self.drafts.verified(rows, proposal, accepted, seconds)

    def _take_known(self, output: SchedulerOutput) -> None:
        """Read ids that come with the step, before the drafter does."""
        known = output.next_token >= 0
        rows = output.row[known]
        state = self._state
        state.token_ids[rows, state.num_computed[rows]] = output.next_token[known]

    def _verified(self, step: SchedulerOutput, proposal: Proposal) -> ModelRunnerOutput:
        state = self._state
        first = state.num_computed[step.row] + 1
        for place in np.flatnonzero(proposal.count).tolist():
            count = int(proposal.count[place])
            begin = int(first[place])
            state.token_ids[step.row[place], begin : begin + count] = proposal.token_ids[
                place, :count
            ]
        num_tokens = step.num_tokens + proposal.count
        return self._verify(
            msgspec.structs.replace(
                step, num_tokens=num_tokens, total_tokens=int(num_tokens.sum()), round_tokens=1
            )
        )
