"""A worker whose next token is the last one plus one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foreign_engine.model import VOCAB_SIZE
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput


class CountingWorker(Worker):
    """Counts up from the last token of each row."""

    def load(self) -> None:
        """Nothing to load."""

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return [KVCacheGroup(layers=("only",), bytes_per_token=8)]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(1 << 20)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        self._tokens: dict[int, list[int]] = {}  # by row

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for new in output.new:
            self._tokens[new.row] = new.token_ids.tolist()
        sampled = {}
        for row in output.row[output.samples].tolist():
            tokens = self._tokens[row]
            sampled[row] = (tokens[-1] + 1) % VOCAB_SIZE
            tokens.append(sampled[row])
        return ModelRunnerOutput(
            step_id=output.step_id,
            row=np.array([*sampled], np.int32),
            offsets=np.arange(len(sampled) + 1, dtype=np.int32),
            token_ids=np.array([*sampled.values()], np.int32),
        )
