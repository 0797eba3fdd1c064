"""All passes of a multi-token step in one call of a kernel. Worker process.

A pass of a tiny model takes less time than its call in Python. Only greedy rows without further processing are
supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tenonry.step import KNOWN_TO_WORKER, NO_ROWS, ModelRunnerOutput, RowFailure
from tenonry_torch_base.attention.sdpa import SdpaBackend
from tenonry_torch_base.paged_attention import PagedKeys
from tenonry_torch_base.round_kernel import RoundEnds
from tenonry_worker_torch.fuse.decoder import FusedForward, RoundsOfTokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry.step import I32
    from tenonry_scheduling.columns import BatchState
    from tenonry_torch_base.round_kernel import RoundTokens
    from tenonry_torch_base.rounds import RowEnds
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.row_changes import RowChanges
    from tenonry_worker_torch.runner.step_pass import StepPass


class KernelPasses:
    """Passes of a runner's model, which may be replaced; see `tenonry_torch_base.rounds.SeveralPasses`."""

    def __init__(
        self,
        forward_pass: StepPass,
        state: BatchState,
        sampler: Sampler,
        features: FeatureList,
        changes: RowChanges,
    ) -> None:
        self._pass = forward_pass
        self._state = state
        self._sampler = sampler
        self._sees_decodes = features.sees_decodes
        self.start = changes.start

    def accepts(self, row: I32) -> bool:
        """Return True if the model has such a kernel, and each row uses the largest logit."""
        kernel = self._kernel()
        if kernel is None or self._sees_decodes or len(row) > kernel.most:
            return False
        return bool(self._sampler.columns.is_plain[row].all())

    def __call__(self, step_id: int, row: I32, most: int, ends: RowEnds) -> ModelRunnerOutput:
        """Compute up to `most` tokens for each of the accepted rows."""
        rounds = self._kernel()
        backend = self._pass.model.backend
        assert rounds is not None  # noqa: S101 - accepted
        assert isinstance(backend, SdpaBackend)  # noqa: S101
        rows = row.astype(np.intp)
        start = self._state.num_computed[rows]
        keys = self._keys(rows, start, most, backend)
        token_ids = torch.from_numpy(self._state.token_ids[rows, start])
        given = RoundEnds(most, torch.from_numpy(ends.stop_ids), torch.from_numpy(ends.free))
        with self._pass.affinity:
            made = rounds(token_ids, keys, given)
        return self._answer(step_id, row, start, made)

    def _kernel(self) -> RoundsOfTokens | None:
        model = self._pass.model
        if isinstance(model.forward, FusedForward) and isinstance(model.backend, SdpaBackend):
            return model.forward.rounds
        return None

    def _keys(
        self, rows: NDArray[np.intp], start: I32, most: int, backend: SdpaBackend
    ) -> PagedKeys:
        """Keys of rows whose last token is at `start`, with blocks for `most` tokens; new blocks are cleared."""
        state = self._state
        size = state.block_size
        width = -(-(int(start.max()) + most) // size)
        table = np.ascontiguousarray(state.block_table[0][rows, :width])
        begins = np.arange(table.shape[1]) * size
        is_entered = (begins >= start[:, None]) & (begins < start[:, None] + most)
        if is_entered.any():
            backend.clear(torch.from_numpy(table[is_entered].astype(np.int64)))
        lengths = torch.from_numpy(start.astype(np.int64) + 1)
        kept = backend.layers[0]
        both = self._pass.model.layers[kept.name].kv_cache[0].both
        return PagedKeys(both, torch.from_numpy(table), lengths)

    def _answer(self, step_id: int, row: I32, start: I32, made: RoundTokens) -> ModelRunnerOutput:
        """Return the columns of the rows, and the tokens of successful ones."""
        state = self._state
        tokens, counts, failed = (each.numpy() for each in made)
        has_failed = failed != 0
        passes = (counts + has_failed).astype(np.int32)
        state.num_computed[row] += passes
        state.num_output[row] += passes
        place = np.arange(tokens.shape[1])
        is_made = place < counts[:, None]
        line, column = np.nonzero(is_made)
        state.token_ids[row[line], start[line] + 1 + column] = tokens[is_made]
        lost = row[has_failed]
        state.token_ids[lost, state.num_computed[lost]] = KNOWN_TO_WORKER
        is_made[has_failed] = False
        offsets = np.zeros(len(row) - len(lost) + 1, np.int32)
        np.cumsum(counts[~has_failed], out=offsets[1:])
        return ModelRunnerOutput(
            step_id=step_id,
            row=row[~has_failed],
            offsets=offsets,
            token_ids=tokens[is_made],
            failed_row=lost if len(lost) else NO_ROWS,
            failed_code=np.full(len(lost), RowFailure.NUMERICAL, np.int32),
        )
