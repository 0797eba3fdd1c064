"""Worker `v1-worker`: the most likely token is the one after the last. Worker process; numpy only, no weights, no K/V."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tenonry.interfaces.worker import Worker
from tenonry.kv_cache import KVCacheConfig, KVCacheGroup, MemoryReport
from tenonry.step import (
    I32,
    ModelRunnerOutput,
    NewRow,
    PromptLogprobs,
    RowFailure,
    SchedulerOutput,
    TokenLogprobs,
)
from tenonry_scheduling import BatchState, StepInputs


class V1Worker(Worker):
    """A token `d` places after the one that follows has probability exp(−d) / Z. Sampling is greedy."""

    interface_version = 1

    def load(self) -> None:
        self.vocab_size = self.context.model.vocab_size
        self.log_z = float(np.log(np.exp(-np.arange(self.vocab_size, dtype=float)).sum()))
        self.requests: dict[int, NewRow] = {}  # row → the request in it

    def kv_cache_groups(self) -> Sequence[KVCacheGroup]:
        return [KVCacheGroup(layers=("none",), bytes_per_token=1)]

    def available_memory(self) -> MemoryReport:
        return MemoryReport(free_bytes=1 << 20)

    def initialize_cache(self, kv_cache: KVCacheConfig) -> None:
        self.state = BatchState(
            self.context.config.max_num_seqs,
            self.context.max_model_len,
            kv_cache.block_size,
            len(kv_cache.groups),
        )

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.requests.update((new.row, new) for new in output.new)
        inputs = self.state.apply(output)  # the columns are now those at the end of the step
        rows = inputs.row[inputs.samples]
        last = self.state.token_ids[rows, inputs.seq_lens[inputs.samples] - 1]
        chosen = np.array([*map(self._sample, rows.tolist(), last.tolist())], np.int32)
        failed = chosen < 0
        rows, last, chosen, no_token = rows[~failed], last[~failed], chosen[~failed], rows[failed]
        self.state.record_sampled(rows, chosen)
        return ModelRunnerOutput(
            step_id=output.step_id,
            row=rows,
            offsets=np.arange(len(rows) + 1, dtype=np.int32),
            token_ids=chosen,
            logprobs=self._token_logprobs(rows, last, chosen),
            prompt_logprobs=self._prompt_logprobs(inputs),
            failed_row=no_token,
            failed_code=np.full(len(no_token), RowFailure.SAMPLING, np.int32),
        )

    def _sample(self, row: int, last: int) -> int:
        """Most likely token that the request may have; −1 if there is none."""
        request = self.requests[row]
        allowed = request.sampling.allowed_token_ids
        is_early = self.state.num_output[row] <= (request.sampling.min_tokens or 0)
        forbidden = request.stop_token_ids if is_early else ()
        for distance in range(self.vocab_size):
            token_id = (last + 1 + distance) % self.vocab_size
            if token_id not in forbidden and (not allowed or token_id in allowed):
                return token_id
        return -1

    def _table(self, last: I32, chosen: I32, count: int) -> tuple[I32, NDArray[np.float32], I32]:
        """Token ids [N, count + 1], log-probabilities [N, count + 1] and ranks [N] of chosen tokens [N]."""
        likely = (last[:, None] + 1 + np.arange(count)) % self.vocab_size
        ids = np.concatenate([chosen[:, None], likely], 1).astype(np.int32)
        distance = (ids - last[:, None] - 1) % self.vocab_size
        return (
            ids,
            (-distance - self.log_z).astype(np.float32),
            (distance[:, 0] + 1).astype(np.int32),
        )

    def _token_logprobs(self, rows: I32, last: I32, chosen: I32) -> TokenLogprobs | None:
        """Those of rows that request them, as many as the most that any requests."""
        counts = [self.requests[row].sampling.logprobs for row in rows.tolist()]
        which = [place for place, count in enumerate(counts) if count is not None]
        if not which:
            return None
        most = max(count for count in counts if count is not None)
        return TokenLogprobs(rows[which], *self._table(last[which], chosen[which], most))

    def _prompt_logprobs(self, inputs: StepInputs) -> list[PromptLogprobs]:
        """Those of the prompt tokens behind the positions that this step computes."""
        found = []
        spans = zip(
            inputs.row.tolist(), inputs.start.tolist(), inputs.seq_lens.tolist(), strict=True
        )
        for row, start, end in spans:
            count = self.requests[row].sampling.prompt_logprobs
            end = min(end, int(self.state.num_prompt[row]) - 1)
            if count is not None and start < end:
                tokens = self.state.token_ids[row, start : end + 1]
                found.append(
                    PromptLogprobs(row, start + 1, *self._table(tokens[:-1], tokens[1:], count))
                )
        return found
