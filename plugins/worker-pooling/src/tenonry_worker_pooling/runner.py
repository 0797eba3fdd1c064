"""Runs prompts step by step: a row is computed as a whole in the step in which it samples. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

from tenonry.sampling_params import PoolingParams
from tenonry.step import BatchState, ModelRunnerOutput, RowFailure

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
        self._state = BatchState(
            max_num_seqs,
            kv_cache.max_model_len,
            kv_cache.block_size,
        )
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
        for batch in self._batches(rows, lengths):
            for row, vector in self._vectors(batch):
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
        self,
        rows: NDArray[np.int32],
        lengths: NDArray[np.int32],
    ) -> Iterator[list[tuple[int, int]]]:
        """(row, length) of each padded batch, longest first, so that little of a batch is padding."""
        order = np.argsort(-lengths, kind="stable")
        batch: list[tuple[int, int]] = []
        for place in order.tolist():
            most = 1
            if batch and self._model.batches:
                most = max(1, self._batch_tokens // batch[0][1])
            if len(batch) >= most:
                yield batch
                batch = []
            batch.append((int(rows[place]), int(lengths[place])))
        yield batch

    def _vectors(self, batch: list[tuple[int, int]]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        prompts = [
            torch.from_numpy(self._state.token_ids[row, :length].astype(np.int64))
            for row, length in batch
        ]
        starts = [self._params[row].pair_start for row, _ in batch]
        found = self._model.run(prompts, starts)
        finished = [
            self._finished(vector, self._params[row])
            for vector, (row, _) in zip(
                found,
                batch,
                strict=True,
            )
        ]
        values = torch.stack(finished) if len({len(one) for one in finished}) == 1 else None
        if values is not None:
            finished = list(values.cpu())
        for (row, _), vector in zip(
            batch,
            finished,
            strict=True,
        ):
            yield row, vector.cpu().numpy()

    def _finished(self, vector: torch.Tensor, params: PoolingParams) -> torch.Tensor:
        """f32[D]: the activation of a head; else cut to `dimensions`, and then of length 1."""
        if self._activation is not None:
            return vector if params.normalize is False else self._activation(vector)
        if params.dimensions is not None:
            vector = vector[: params.dimensions]
        wanted = self._normalize if params.normalize is None else params.normalize
        return functional.normalize(vector, dim=0) if wanted else vector
