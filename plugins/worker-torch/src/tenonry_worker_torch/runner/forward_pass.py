"""The forward pass of a step: attention plans, the model. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_worker_torch.batch import attention_batch, dummy_batch, pruned_batch, tokens_as_rows
from tenonry_worker_torch.forward import Forward, ForwardPlans, StageForward
from tenonry_worker_torch.runner.step_pass import StepPass

if TYPE_CHECKING:
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step import Step

DUMMY_TOKENS = 2  # a prompt of two, since a single token is a decoding row


class ForwardPass(StepPass):
    """Computes all tokens of a step over K/V in blocks."""

    forward: Forward

    def __init__(self, context: RunnerContext, features: FeatureList, dummy_block: int) -> None:
        """`dummy_block`: a block of no request."""
        self._dummy_block = dummy_block
        super().__init__(context, features)

    def adopt(self, model: LoadedModel) -> None:
        super().adopt(model)
        link = model.parallel.link
        is_whole = link.num_stages == 1
        self.forward = model.forward if is_whole else StageForward(model.forward, link)
        self.can_prune = self.forward.can_prune

    def forget_model(self) -> None:
        super().forget_model()
        self.forward = None  # type: ignore[assignment]

    def compute(self, step: Step) -> None:
        put = step.buffers.put
        kept = step.kept
        keep = None if kept is None else put("keep", kept)
        is_pruned = keep is not None and step.can_prune and not step.prompt_tokens
        plans = self._plans(step, is_pruned=is_pruned)
        positions = put("positions", step.positions)
        with self.affinity:
            logits = self.forward(step.model_inputs, positions, keep, plans)
        if step.prompt_tokens:
            step.split_logits(logits)
        else:
            step.logits = logits

    def _plans(self, step: Step, *, is_pruned: bool) -> ForwardPlans:
        backend = self.model.backend
        buffers = step.buffers
        batch = attention_batch(
            step.inputs, self._state, self.generation, buffers, backend.num_groups
        )
        if step.verifies and backend.splits_rows:
            batch = tokens_as_rows(batch)
        batch.last_seen = step.last_seen
        plans = ForwardPlans(backend.plan(batch), lengths=step.lengths)
        if is_pruned:
            pruned = pruned_batch(batch, plans.full, step.inputs.samples, buffers)
            plans.last = backend.plan(pruned)
        return plans

    @torch.inference_mode()
    def dummy(self) -> None:
        backend = self.model.backend
        buffers = self.model.buffers
        buffers.begin_step()
        super().dummy()
        count = DUMMY_TOKENS
        token_ids = torch.zeros(count, dtype=torch.long, device=self.model.device)
        positions = buffers.put("positions", np.arange(count, dtype=np.int64))
        keep = buffers.put("keep", np.array([count - 1]))
        size = self._state.block_size
        batch = dummy_batch(self._dummy_block, size, count, buffers, backend.num_groups)
        self.forward(token_ids, positions, keep, ForwardPlans(backend.plan(batch)))
