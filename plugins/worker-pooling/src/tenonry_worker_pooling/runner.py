"""Runs prompts step by step: a row is computed as a whole in the step in which it samples. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from tenonry.sampling_params import PoolingParams
from tenonry.step import BatchState, ModelRunnerOutput, RowFailure
from tenonry_worker_pooling.batches import FULL, BatchLimits, batch_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tenonry.kv_cache import KVCacheConfig
    from tenonry.step import SchedulerOutput
    from tenonry_worker_pooling.model import PoolingModel

PLAIN = PoolingParams()


class PoolingRunner:
    """The columns of all rows, and what each asks for."""

    def __init__(
        self,
        model: PoolingModel,
        kv_cache: KVCacheConfig,
        *,
        max_num_seqs: int,
        batch_tokens: int,
        normalize: bool,
        activation: Callable[[torch.Tensor], torch.Tensor] | None,
    ) -> None:
        self._model = model
        self._normalize = normalize
        self._activation = activation
        self._batch_tokens = batch_tokens
        self._state = BatchState(max_num_seqs, kv_cache.max_model_len, kv_cache.block_size)
        self._params: dict[int, PoolingParams] = {}

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """One step. Rows whose prompt goes on in later steps compute nothing yet: all their tokens are known."""
        for row in output.gone.tolist():
            self._params.pop(row, None)
        for new in output.new:
            self._params[new.row] = new.sampling.pooling or PLAIN
        inputs = self._state.apply(output)
        rows = inputs.row[inputs.samples]
        if not len(rows):
            return ModelRunnerOutput(step_id=output.step_id)
        lengths = inputs.seq_lens[inputs.samples]
        pooled: dict[int, NDArray[np.float32]] = {}
        failed = []
        for batch, sizes in self._batches(rows, lengths):
            for row, vector in zip(batch.tolist(), self._vectors(batch, sizes), strict=True):
                if np.isfinite(vector).all():
                    pooled[row] = vector
                else:
                    failed.append(row)
        token_ids = np.zeros(len(rows), np.int32)
        self._state.record_sampled(rows, token_ids)
        return ModelRunnerOutput(
            step_id=output.step_id,
            row=rows,
            offsets=np.arange(len(rows) + 1, dtype=np.int32),
            token_ids=token_ids,
            failed_row=np.array(failed, np.int32),
            failed_code=np.full(len(failed), RowFailure.NUMERICAL, np.int32),
            pooled=pooled,
        )

    def _batches(
        self, rows: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int32]]]:
        """(rows, lengths) of each padded batch, longest first."""
        order = np.argsort(-lengths, kind="stable")
        rows = rows[order]
        lengths = lengths[order]
        limits = BatchLimits(self._batch_tokens, FULL[self._model.module.device.type])
        if not self._model.batches:
            limits = BatchLimits(1, 1)
        start = 0
        for end in batch_ends(lengths.tolist(), limits):
            yield rows[start:end], lengths[start:end]
            start = end

    def _vectors(
        self, rows: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """One of each row, of one width or of several."""
        asked = [self._params[row] for row in rows.tolist()]
        found = self._model.run(
            torch.from_numpy(self._state.token_ids[rows, : lengths[0]].astype(np.int64)),
            torch.from_numpy(lengths.astype(np.int64)),
            torch.tensor([params.pair_start for params in asked]),
        )
        forms = {(params.normalize, params.dimensions) for params in asked}
        if len(forms) == 1:
            made: NDArray[np.float32] = self._finished(found, asked[0]).cpu().numpy()
            return made
        return [
            self._finished(vector, params).cpu().numpy()
            for vector, params in zip(found, asked, strict=True)
        ]

    def _finished(self, vectors: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """f32[..., D]: the activation of a head; else cut to `dimensions`, and then of length 1."""
        if self._activation is not None:
            return vectors if params.normalize is False else self._activation(vectors)
        if params.dimensions is not None:
            vectors = vectors[..., : params.dimensions]
        wanted = self._normalize if params.normalize is None else params.normalize
        return functional.normalize(vectors, dim=-1) if wanted else vectors
