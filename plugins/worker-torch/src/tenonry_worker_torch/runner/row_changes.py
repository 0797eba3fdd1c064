"""Rows that leave and enter before a pass, in all parts of a runner that keep something by row. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tenonry.step import SchedulerOutput
    from tenonry_scheduling.columns import BatchState, StepInputs
    from tenonry_torch_base.rounds import Rounds
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step_pass import StepPass


class RowChanges:
    """Applies the changes of a step to columns, forward pass, sampler and features."""

    def __init__(
        self, state: BatchState, forward_pass: StepPass, sampler: Sampler, features: FeatureList
    ) -> None:
        self._state = state
        self._forward_pass = forward_pass
        self._sampler = sampler
        self._features = features

    def apply(self, output: SchedulerOutput, rounds: Rounds) -> StepInputs:
        """Remove finished rows, add new ones, advance the columns to the end of the step."""
        self._leave(output, rounds)
        inputs = self._state.apply(output)
        for new in output.new:
            self._forward_pass.enter(new)
            self._sampler.enter(new)
            rounds.enter(new)
            for enter in self._features.enter:
                enter(new)
        return inputs

    def start(self, output: SchedulerOutput, rounds: Rounds) -> None:
        """As `apply`, for a step without new rows, leaving the columns of the others at its start."""
        self._leave(output, rounds)
        self._state.change_rows(output)

    def _leave(self, output: SchedulerOutput, rounds: Rounds) -> None:
        if not len(output.gone):
            return
        self._forward_pass.leave(output.gone)
        for row in output.gone.tolist():
            self._sampler.leave(row)
            rounds.leave(row)
        for leave in self._features.leave:
            leave(output.gone)
