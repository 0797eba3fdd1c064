"""Runs a pipeline stage that is not the last, step by step: its layers, and on to the next stage. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.results import StepResult
from tenonry_worker_torch.batch import attention_batch
from tenonry_worker_torch.forward import ForwardPlans
from tenonry_worker_torch.runner.runner import ModelRunner

if TYPE_CHECKING:
    from tenonry.step import SchedulerOutput


class StageRunner(ModelRunner):
    """As a ModelRunner, but nothing is sampled: the tokens of decoding rows come with the step."""

    @torch.inference_mode()
    def _run(self, output: SchedulerOutput) -> StepResult:
        if len(output.gone):
            self._leave(output.gone)
        inputs = self.state.apply(output)
        for new in output.new:
            self.generation[new.row] += 1
            self._enter_length(new)
        if not len(output.row):
            return StepResult(output.step_id, output.row, None, [])
        self.buffers.begin_step()
        link = self.model.parallel.link
        token_ids = self.history.inputs(output, inputs, self.buffers)
        given = link.inputs(token_ids)
        batch = attention_batch(
            inputs, self.state, self.generation, self.buffers, self.model.backend.num_groups
        )
        positions = inputs.positions.astype(np.int64)
        hidden = self.model.forward(
            given,
            self.buffers.put("positions", positions),
            keep=None,
            plans=ForwardPlans(self.model.backend.plan(batch), lengths=self._lengths(inputs)),
        )
        link.send(hidden)
        return StepResult(output.step_id, output.row, None, [])
