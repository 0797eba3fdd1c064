"""The forward pass of a model that pools: whole prompts in padded batches. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry_worker_torch.pooling.batches import batch_ends
from tenonry_worker_torch.runner.step_pass import StepPass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tenonry_worker_torch.pooling.pooler import Pooler
    from tenonry_worker_torch.runner.step import Step


class PromptPass(StepPass):
    """A vector for each sampling row. Rows whose prompt continues in a later step compute nothing yet: all their tokens
    are known, and nothing of them is cached.
    """

    def compute(self, step: Step) -> None:
        pooler: Pooler = self.model.pooler  # type: ignore[assignment] - see `forward_pass_of`
        inputs = step.inputs
        lengths = inputs.seq_lens[inputs.samples]
        if not len(lengths):
            step.logits = torch.empty(0)
            return
        order = np.argsort(-lengths, kind="stable")  # longest first
        rows = inputs.row[inputs.samples][order]
        starts = step.pair_starts[order]
        lengths = lengths[order]
        with self.affinity:
            found = [
                self._vectors(pooler, rows[batch], lengths[batch], starts[batch])
                for batch in _batches(pooler, lengths)
            ]
        step.logits = torch.cat(found)[torch.from_numpy(np.argsort(order))]

    def _vectors(
        self,
        pooler: Pooler,
        rows: NDArray[np.int32],
        lengths: NDArray[np.int32],
        starts: NDArray[np.int64],
    ) -> torch.Tensor:
        token_ids = self._state.token_ids[rows, : lengths[0]].astype(np.int64)
        return pooler.run(
            torch.from_numpy(token_ids),
            torch.from_numpy(lengths.astype(np.int64)),
            torch.from_numpy(starts),
        )


def _batches(pooler: Pooler, lengths: NDArray[np.int32]) -> Iterator[slice]:
    """Padded batches of prompts with descending `lengths`."""
    start = 0
    for end in batch_ends(lengths.tolist(), pooler.limits):
        yield slice(start, end)
        start = end
