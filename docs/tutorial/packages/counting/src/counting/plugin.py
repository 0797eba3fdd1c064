"""Worker `counting`: the next token is the last one plus a number. Worker process; no weights, no K/V."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling import BatchState


class CountingSettings(PluginSettings):
    """Settings of the worker `counting`."""

    count_by: int = setting(1, ge=1, replaceable=True)
    """Difference between two tokens."""
    count_from: int | None = setting(None, ge=0, env="FIRST_COUNT")
    """All tokens. Defaults to the sum of the last one and `count_by`."""


class Counting(Worker):
    """Counts modulo the vocabulary size. Sampling parameters have no effect."""

    interface_version = 1
    Settings = CountingSettings

    def load(self) -> None:
        self.settings = self.context.config.section(CountingSettings)

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return [KVCacheGroup(layers=("none",), bytes_per_token=1)]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(free_bytes=1 << 20)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        config, groups = self.context.config, len(kv_cache.groups)
        self.state = BatchState(
            config.max_num_seqs, self.context.max_model_len, kv_cache.block_size, groups
        )

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        inputs = self.state.apply(output)  # the columns are now as they are at the end of the step
        rows = inputs.row[inputs.samples]
        counts = self.state.token_ids[rows, inputs.seq_lens[inputs.samples] - 1]
        counts = counts + self.settings.count_by
        if self.settings.count_from is not None:
            counts[:] = self.settings.count_from
        tokens = (counts % self.context.model.vocab_size).astype(np.int32)
        self.state.record_sampled(rows, tokens)
        offsets = np.arange(len(rows) + 1, dtype=np.int32)
        return ModelRunnerOutput(
            step_id=output.step_id, row=rows, offsets=offsets, token_ids=tokens
        )
