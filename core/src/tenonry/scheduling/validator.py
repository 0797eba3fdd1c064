"""Checks each step of a scheduler against its contract, in numpy. Engine process; on unless the user turns it off.

It keeps its own columns, fed only with what the workers will see, so a scheduler cannot fool it with its own books.
"""

from __future__ import annotations

import numpy as np

from tenonry.config import EngineConfig
from tenonry.errors import ContractViolation
from tenonry.kv_cache import KVCacheConfig
from tenonry.step import I32, BatchState, ModelRunnerOutput, SchedulerOutput, StepInputs


class StepValidator:
    """Raises ContractViolation with the plugin, the step and the rule. `check` follows every `schedule()`.

    `added` and `ended` tell it which handles exist; `answered` follows every result.
    """

    def __init__(
        self,
        plugin: str,
        config: EngineConfig,
        kv_cache: KVCacheConfig,
        max_model_len: int,
        *,
        feeds_back: bool = True,
    ) -> None:
        self._plugin, self._budget, self._max_model_len = plugin, config.step_token_budget, max_model_len
        self._max_num_seqs, self._num_blocks, self._block_size = (
            config.max_num_seqs,
            kv_cache.num_blocks,
            kv_cache.block_size,
        )
        self._feeds_back = feeds_back
        self._state = BatchState(config.max_num_seqs, max_model_len, kv_cache.block_size, len(kv_cache.groups))
        self._total = np.zeros(config.max_num_seqs, np.int32)  # tokens incl. pending ones
        self._pending = np.zeros(config.max_num_seqs, np.int32)
        self._entry = np.zeros(config.max_num_seqs, np.int64)  # which stay in the row this is
        self._writer = np.full((len(kv_cache.groups), kv_cache.num_blocks), -1, np.int64)  # stay that wrote a block
        self._stays = 0
        self._stay_row: dict[int, int] = {}
        self._scratch = np.zeros(kv_cache.num_blocks, np.int64)
        self._live: set[int] = set()
        self._step_id = -1

    def added(self, handle: int) -> None:
        self._live.add(handle)

    def ended(self, handle: int) -> None:
        self._live.discard(handle)

    def check(self, output: SchedulerOutput) -> None:
        """Every rule that one step can break."""
        self._expect(output.step_id == self._step_id + 1, "steps are numbered", f"expected step {self._step_id + 1}")
        self._step_id = output.step_id
        self._check_shapes(output)
        self._leave(output.gone)
        for new in output.new:
            self._check_new(new.row, new.handle, len(new.token_ids), new.num_computed)
        inputs = self._state.apply(output)
        for new in output.new:
            self._total[new.row] = len(new.token_ids)
        if len(output.row):
            self._check_rows(output, inputs)
            self._check_blocks(output.row, inputs)

    def answered(self, output: SchedulerOutput, result: ModelRunnerOutput) -> None:
        """A result came back: its tokens are no longer pending."""
        if not self._feeds_back:
            self._pending[result.row] = 0

    # ------------------------------------------------------------------ rules
    def _expect(self, holds: bool | np.bool_, rule: str, detail: str) -> None:
        if not holds:
            raise ContractViolation(self._plugin, self._step_id, rule, detail)

    def _check_shapes(self, output: SchedulerOutput) -> None:
        rows = len(output.row)
        equal = len(output.num_tokens) == len(output.next_token) == len(output.samples) == rows
        self._expect(equal, "columns of a step have one length", f"{rows} rows")
        total = int(output.num_tokens.sum())
        self._expect(
            total == output.total_tokens,
            "total_tokens is the sum of num_tokens",
            f"{output.total_tokens} != {total}",
        )
        self._expect(total <= self._budget, "max_num_batched_tokens", f"{total} tokens, the budget is {self._budget}")
        if rows:
            self._expect(output.num_tokens.min() >= 1, "a scheduled row computes tokens", "num_tokens below 1")
            inside = output.row.min() >= 0 and output.row.max() < self._max_num_seqs
            self._expect(inside, "max_num_seqs", f"a row is outside 0..{self._max_num_seqs - 1}")

    def _leave(self, gone: I32) -> None:
        for row in gone.tolist():
            self._expect(self._state.handle[row] != 0, "only running rows leave", f"row {row} is free")
            self._stay_row.pop(int(self._entry[row]), None)
            self._entry[row] = 0

    def _check_new(self, row: int, handle: int, length: int, num_computed: int) -> None:
        self._expect(0 <= row < self._max_num_seqs, "max_num_seqs", f"row {row} is outside 0..{self._max_num_seqs - 1}")
        self._expect(handle in self._live, "only known, unfinished requests run", f"handle {handle}")
        self._expect(self._entry[row] == 0, "a row holds one request", f"row {row} is in use")
        self._expect(num_computed < length, "a hit never covers the last token", f"{num_computed} of {length} tokens")
        self._expect(length <= self._max_model_len, "max_model_len", f"{length} tokens in row {row}")
        self._stays += 1
        self._entry[row] = self._stays
        self._stay_row[self._stays] = row
        self._pending[row] = 0

    def _check_rows(self, output: SchedulerOutput, inputs: StepInputs) -> None:
        row = output.row
        entry = self._entry[row]
        self._expect(entry.min() > 0, "only running rows are scheduled", "a row was never entered, or has left")
        self._expect(_distinct(row, self._max_num_seqs), "a row is scheduled once per step", "a row appears twice")
        longest = int(inputs.seq_lens.max())
        self._expect(longest <= self._max_model_len, "max_model_len", f"a row would hold {longest} tokens")
        total = self._total[row]
        self._expect((inputs.seq_lens <= total).all(), "only existing tokens are computed", "num_tokens is too large")
        samples = inputs.seq_lens == total
        self._expect((samples == output.samples).all(), "exactly the last token of a row samples", "samples is wrong")
        if not self._feeds_back:
            self._expect((self._pending[row] == 0).all(), "no row with a pending token", "feeds_back_tokens is False")
            self._pending[row] += samples
        self._total[row] = total + samples

    def _check_blocks(self, row: I32, inputs: StepInputs) -> None:
        size, last = self._block_size, inputs.seq_lens - 1
        for group, table in enumerate(self._state.block_table):
            slots = self._state.num_blocks[group][row] * size
            self._expect((slots >= inputs.seq_lens).all(), "every scheduled token has a slot", "a row lacks blocks")
            first_block, last_block = inputs.start // size, last // size
            if (first_block == last_block).all():
                rows, blocks = row, table[row, last_block]
            else:
                count = last_block - first_block + 1
                rows = np.repeat(row, count)
                shift = np.repeat(first_block - (np.cumsum(count) - count), count)
                blocks = table[rows, np.arange(len(rows)) + shift]
            self._check_writers(group, rows, blocks)

    def _check_writers(self, group: int, rows: I32, blocks: I32) -> None:
        self._expect(
            blocks.min() >= 0 and blocks.max() < self._num_blocks,
            "block ids exist",
            "a block id is out of range",
        )
        entry = self._entry[rows]
        self._scratch[blocks] = np.arange(len(blocks))
        self._expect(
            (self._scratch[blocks] == np.arange(len(blocks))).all(),
            "one writer per block",
            "two rows write one block",
        )
        earlier = self._writer[group, blocks]
        for i in np.flatnonzero((earlier != entry) & (earlier > 0)).tolist():
            other = self._stay_row.get(int(earlier[i]))
            if other is not None:
                held = self._state.block_table[group][other, : self._state.num_blocks[group, other]]
                self._expect(
                    int(blocks[i]) not in held,
                    "one writer per block",
                    f"rows {other} and {rows[i]} share block {blocks[i]}",
                )
        self._writer[group, blocks] = entry


def _distinct(rows: I32, size: int) -> bool:
    seen = np.zeros(size, np.bool_)
    seen[rows] = True
    return int(np.count_nonzero(seen)) == len(rows)
