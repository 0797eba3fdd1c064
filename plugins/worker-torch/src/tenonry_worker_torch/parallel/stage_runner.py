"""Runs a pipeline stage that is not the last, step by step: its layers, and on to the next stage. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import RowFailure
from tenonry_worker_torch.batch import attention_batch
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.model_runner import ModelRunner
from tenonry_worker_torch.results import StepResult
from tenonry_worker_torch.sampler.sampler import Sampled

if TYPE_CHECKING:
    from tenonry.step import SchedulerOutput, StepInputs


class StageRunner(ModelRunner):
    """As a ModelRunner, but nothing is sampled: the tokens of decoding rows come with the step."""

    @torch.inference_mode()
    def _run(self, output: SchedulerOutput) -> StepResult:
        if len(output.gone):
            self._leave(output.gone)
        inputs = self.state.apply(output)
        for new in output.new:
            self.generation[new.row] += 1
        if not len(output.row):
            return StepResult(output.step_id, output.row, None, [], self._scrubber(), is_silent=True)
        self.buffers.begin_step()
        link = self.model.parallel.link
        given = link.inputs(self.history.inputs(output, inputs, self.buffers))
        batch = attention_batch(inputs, self.state, self.generation, self.buffers)
        positions = self.buffers.put("positions", inputs.positions.astype(np.int64))
        plans = ForwardPlans(self.model.backend.plan(batch))
        hidden = self.model.forward(given, positions, None, plans)
        link.send(hidden)
        rows = inputs.row[inputs.samples]
        failed = self._failed(inputs, hidden) if len(rows) else None
        return StepResult(output.step_id, rows, failed, [], self._scrubber(), is_silent=True)

    def _failed(self, inputs: StepInputs, hidden: torch.Tensor) -> Sampled:
        """Rows whose last token is NaN here will fail in the last stage: their K/V must not outlive them here."""
        last = inputs.query_start_loc[1:][inputs.samples].astype(np.int64) - 1
        is_nan = hidden[self.buffers.put("last", last)].isnan().any(-1)
        return Sampled(torch.zeros_like(is_nan, dtype=torch.long), is_nan.to(torch.int32) * RowFailure.NUMERICAL)
