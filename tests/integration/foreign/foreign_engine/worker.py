"""A worker whose next token is the last one plus one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foreign_engine.model import VOCAB_SIZE
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import BatchState, ModelRunnerOutput, SchedulerOutput


class CountingWorker(Worker):
    """Counts up from the last token of each row."""

    def load(self) -> None:
        """Nothing to load."""

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return [KVCacheGroup(layers=("only",), bytes_per_token=8)]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(1 << 20)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        rows = self.context.config.max_num_seqs
        self._state = BatchState(rows, self.context.max_model_len, kv_cache.block_size)

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        inputs = self._state.apply(output)
        rows = inputs.row[inputs.samples]
        last = self._state.token_ids[rows, inputs.seq_lens[inputs.samples] - 1]
        token_ids = ((last + 1) % VOCAB_SIZE).astype(np.int32)
        self._state.record_sampled(rows, token_ids)
        offsets = np.arange(len(rows) + 1, dtype=np.int32)
        return ModelRunnerOutput(
            step_id=output.step_id, row=rows, offsets=offsets, token_ids=token_ids
        )
