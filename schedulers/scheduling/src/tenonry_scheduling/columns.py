"""Columns of all rows on the side that executes steps, and the flat inputs of one step. Engine and worker processes.

`BatchState.apply` is the only code that turns a `SchedulerOutput` into columns, for the validator, the fake worker and
every real one alike.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tenonry.step import I32, KNOWN_TO_WORKER, NewRow, SchedulerOutput


def joined_ranges(start: I32, count: NDArray[np.integer[Any]]) -> I32:
    """Concatenate ranges: `count[i]` numbers from `start[i]` on."""
    shift = np.repeat(start - (np.cumsum(count) - count), count)
    return np.arange(len(shift), dtype=np.int32) + shift.astype(np.int32)


class Spans(NamedTuple):
    """Positions computed by each scheduled row: row intp[R], from start i32[R] up to seq_lens i32[R]."""

    row: NDArray[np.intp]
    start: I32
    seq_lens: I32


class StepInputs:
    """The flattened batch of one step, T tokens over R rows: inputs of a model runner.

    row i32[R], start i32[R] (first position), num_tokens i32[R], samples bool[R], query_start_loc i32[R+1], seq_lens
    i32[R] (KV length after the step), positions i32[T], token_ids i32[T] (−1 for the worker's own last sample),
    token_row i32[T] (row of each token).
    """

    __slots__ = (
        "num_tokens", "positions", "query_start_loc", "row", "samples", "seq_lens", "start", "token_ids", "token_row",
    )  # fmt: skip

    def __init__(self, state: BatchState, output: SchedulerOutput, spans: Spans) -> None:
        self.row = output.row
        self.num_tokens = output.num_tokens
        self.samples = output.samples
        row, self.start, self.seq_lens = spans
        if output.total_tokens == len(row):  # every row computes exactly one token
            self.query_start_loc = np.arange(len(row) + 1, dtype=np.int32)
            self.positions, self.token_row = self.start, output.row
            self.token_ids = state.token_ids[row, self.start]
        else:
            self.query_start_loc = np.zeros(len(row) + 1, np.int32)
            np.cumsum(output.num_tokens, out=self.query_start_loc[1:])
            self.positions = joined_ranges(self.start, output.num_tokens)
            self.token_row = np.repeat(output.row, output.num_tokens)
            self.token_ids = state.token_ids[self.token_row, self.positions]


class BatchState:
    """Columns of all rows on the side that executes steps.

    token_ids i32[max_num_seqs, max_model_len] (−1 unknown), num_computed i32[max_num_seqs], num_output
    i32[max_num_seqs], num_prompt i32[max_num_seqs], handle u64[max_num_seqs] (0 free), block_table
    i32[groups, max_num_seqs, max_blocks], num_blocks i32[groups, max_num_seqs].
    """

    def __init__(
        self, max_num_seqs: int, max_model_len: int, block_size: int, num_groups: int = 1
    ) -> None:
        max_blocks = -(-max_model_len // block_size)
        self.block_size = block_size
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_computed = np.zeros(max_num_seqs, np.int32)
        self.num_output = np.zeros(max_num_seqs, np.int32)
        self.num_prompt = np.zeros(max_num_seqs, np.int32)
        self.handle = np.zeros(max_num_seqs, np.uint64)
        self.block_table = np.zeros((num_groups, max_num_seqs, max_blocks), np.int32)
        self.num_blocks = np.zeros((num_groups, max_num_seqs), np.int32)

    def apply(self, output: SchedulerOutput) -> StepInputs:
        """Advance the columns to the end of the step, and return its inputs."""
        return StepInputs(self, output, self.advance(output))

    def advance(self, output: SchedulerOutput) -> Spans:
        """As `apply`, without inputs: returns the rows and positions of the step."""
        row = self.change_rows(output)
        start = self.num_computed[row]
        seq_lens = self.num_computed[row] = start + output.num_tokens
        sampling = row[output.samples]
        behind = seq_lens[output.samples]  # the position after those computed in this step
        self.token_ids[sampling, behind] = KNOWN_TO_WORKER
        self.num_output[sampling] += 1
        return Spans(row, start, seq_lens)

    def change_rows(self, output: SchedulerOutput) -> NDArray[np.intp]:
        """Remove finished rows, add new ones, and store the step's blocks and tokens; returns its rows."""
        if len(output.gone):
            self.handle[output.gone] = 0
            self.num_blocks[:, output.gone] = 0
        for new in output.new:
            self._enter(new)
        if len(output.new_block_row):
            self._extend(output.new_block_row, output.new_block_group, output.new_block_id)
        row = output.row.astype(np.intp)  # numpy converts any other integer type on every use
        known = (output.next_token >= 0).nonzero()[0]
        if len(known):
            rows = row[known]
            self.token_ids[rows, self.num_computed[rows]] = output.next_token[known]
        return row

    def record_sampled(self, rows: I32, token_ids: I32) -> None:
        """Store the tokens sampled by `rows` in the step just applied, so that `next_token` may be −1."""
        self.token_ids[rows, self.num_computed[rows]] = token_ids

    def _enter(self, new: NewRow) -> None:
        row, length = new.row, len(new.token_ids)
        self.handle[row] = new.handle
        self.token_ids[row, :length] = new.token_ids
        self.num_computed[row] = new.num_computed
        self.num_output[row] = new.num_output
        self.num_prompt[row] = length - new.num_output
        for group, ids in enumerate(new.block_ids):
            self.block_table[group, row, : len(ids)] = ids
            self.num_blocks[group, row] = len(ids)

    def _extend(self, rows: I32, groups: I32, ids: I32) -> None:
        """Append block `ids[i]` to `rows[i]`; in each group, the blocks of one row are neighbours, in order."""
        if len(self.block_table) > 1:
            order = groups.argsort(kind="stable")
            rows, groups, ids = rows[order], groups[order], ids[order]
        of = (groups, rows.astype(np.intp))
        place = self.num_blocks[of]
        follows = (rows[1:] == rows[:-1]) & (groups[1:] == groups[:-1])
        if np.count_nonzero(follows):  # several blocks for one row
            first = np.flatnonzero(np.append(True, ~follows))
            place = joined_ranges(place[first], np.diff(first, append=len(ids)))
        self.block_table[*of, place] = ids
        np.maximum.at(self.num_blocks, of, place + 1)
