"""Worker `successors`: the next token follows from the last one by a rule. Worker process."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from successors.plugin import POINT, open_rule
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling import BatchState


class SuccessorsOptions(PluginOptions):
    """Options of `--worker-option`."""

    rule: str = Field(default="plus-one", description="Rule for the next token.")


class SuccessorsWorker(Worker):
    """Computes no model, so that only the rule decides."""

    interface_version = 1
    Options = SuccessorsOptions

    def load(self) -> None:
        options = self.context.options
        choice = options.rule if isinstance(options, SuccessorsOptions) else "plus-one"
        self.rule, self.label = open_rule(choice)

    def resolved_plugins(self) -> dict[str, str]:
        return {POINT.kind: self.label}

    def kv_cache_groups(self) -> list[KVCacheGroup]:
        return [KVCacheGroup(layers=("none",), bytes_per_token=1)]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(free_bytes=1 << 20)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        config, groups = self.context.config, len(kv_cache.groups)
        self.state = BatchState(
            config.max_num_seqs, self.context.max_model_len, kv_cache.block_size, groups
        )

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        inputs = self.state.apply(output)
        rows = inputs.row[inputs.samples]
        last = self.state.token_ids[rows, inputs.seq_lens[inputs.samples] - 1]
        tokens = (self.rule.after(last) % self.context.model.vocab_size).astype(np.int32)
        self.state.record_sampled(rows, tokens)
        offsets = np.arange(len(rows) + 1, dtype=np.int32)
        return ModelRunnerOutput(
            step_id=output.step_id, row=rows, offsets=offsets, token_ids=tokens
        )
