"""The forward pass of a step: hooks of features, attention plans, the model. Worker process."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_torch_base.profiling import scoped
from tenonry_worker_torch.batch import attention_batch, dummy_batch, pruned_batch, tokens_as_rows
from tenonry_worker_torch.forward import Forward, ForwardPlans, StageForward

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import NewRow
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.step import Step

DUMMY_TOKENS = 2  # a prompt of two, since a single token would look like a decoding row


class ForwardPass:
    """Computes the logits of a step. `affinity`: context of the model's own computation, such as CPU affinity; other
    threads that a step starts stay outside. `generation` i64[max_num_seqs]: a row's number of fillings, for backends.
    """

    model: LoadedModel
    forward: Forward

    def __init__(self, context: RunnerContext, features: FeatureList, dummy_block: int) -> None:
        """`dummy_block`: a block of no request."""
        self.affinity: AbstractContextManager[None] = nullcontext()
        self._state = context.state
        self._failures = context.failures
        self.generation = np.zeros(len(self._state.handle), np.int64)
        self._features = features
        self._dummy_block = dummy_block
        self.adopt(context.model)

    def enter(self, new: NewRow) -> None:
        """A row is filled anew."""
        self.generation[new.row] += 1
        self._failures.clear(new.row)

    def leave(self, rows: NDArray[np.int32]) -> None:
        """Rows are free."""
        self.model.backend.release(rows)
        for row in rows.tolist():
            self._failures.clear(row)

    def adopt(self, model: LoadedModel) -> None:
        """Compute with this model from now on."""
        self.model = model
        link = model.parallel.link
        is_whole = link.num_stages == 1
        self.forward = model.forward if is_whole else StageForward(model.forward, link)

    def forget_model(self) -> None:
        """Drop the model; no step follows before `adopt`."""
        self.model = self.forward = None  # type: ignore[assignment]

    @scoped("tenonry: forward")
    def __call__(self, step: Step) -> None:
        """Set `step.logits`. May be repeated with parts of the step: only K/V and what features prepare change."""
        step.can_prune = self.forward.can_prune
        for prepare in self._features.prepare:
            prepare(step)
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

    def begin_part(self, rows: NDArray[np.int32]) -> None:
        """Start a repeated computation of these rows: the backend's state of them besides their blocks may be wrong,
        and is not used for another generation.
        """
        self.generation[rows] += 1
        self.model.buffers.begin_step()

    @torch.inference_mode()
    def dummy(self) -> None:
        """A pass over tokens of no request, for ranks that wait for this one. No request's K/V are touched."""
        backend = self.model.backend
        buffers = self.model.buffers
        buffers.begin_step()
        for hook in self._features.dummy:
            hook()
        count = DUMMY_TOKENS
        token_ids = torch.zeros(count, dtype=torch.long, device=self.model.device)
        positions = buffers.put("positions", np.arange(count, dtype=np.int64))
        keep = buffers.put("keep", np.array([count - 1]))
        size = self._state.block_size
        batch = dummy_batch(self._dummy_block, size, count, buffers, backend.num_groups)
        self.forward(token_ids, positions, keep, ForwardPlans(backend.plan(batch)))
