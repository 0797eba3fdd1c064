"""Step observer that checks each step of a scheduler against its contract, in numpy. Engine process.

It keeps its own columns, fed only with the workers' input, so it is independent of the scheduler's own state.
"""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.typing import NDArray

from tenonry.config import EngineConfig
from tenonry.errors import ContractViolation
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.step_observer import StepObserver
from tenonry.step import I32, ModelRunnerOutput, NewRow, SchedulerOutput
from tenonry.transport.serial import Encoder
from tenonry_scheduling.columns import BatchState, Spans, joined_ranges
from tenonry_scheduling.settings import ValidatorSettings

_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
# Setting, unless 0, that limits the different values of a field in the rows of one step.
_DISTINCT = {"adapter": "max_loras"}


class StepValidator(StepObserver):
    """Raises ContractViolation with scheduler, step and rule."""

    Settings = ValidatorSettings

    @classmethod
    def observes(cls, config: EngineConfig) -> bool:
        return config.section(ValidatorSettings).validate_scheduler

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        config, kv_cache = context.config, context.kv_cache
        num_rows = config.max_num_seqs
        self._plugin = context.plugin_name
        self._num_rows = num_rows
        self._budget = config.step_token_budget
        self._ahead = 0  # maximum tokens of each row of the last step beyond one
        # Window of the layers of each group; 0 for those with a state.
        self._windows = [
            0 if group.kind == "recurrent" else group.window or context.max_model_len
            for group in kv_cache.groups
        ]
        self._num_groups = len(self._windows)
        # Exclusive bound of the ids of each group: blocks, or state slots.
        self._num_ids = np.where(self._windows, kv_cache.num_blocks, kv_cache.num_state_slots)
        self._state = BatchState(
            num_rows, context.max_model_len, kv_cache.block_size, self._num_groups
        )
        self._limit = np.zeros(num_rows, np.int32)
        # Rows that never run with a pending token: all without feedback, else those with a grammar.
        self._waits, self._pending, self._runs = np.zeros((3, num_rows), np.bool_)
        # Maximum different values of a field in one step (0: unlimited), and a hash of each row's value.
        self._bounded = [
            (field, setting, getattr(config, setting), np.zeros(num_rows, np.int64))
            for field, setting in _DISTINCT.items()
        ]
        self._row_of: dict[int, int] = {}  # by handle
        # A stay is the period of a request in a row: its number modulo the number of rows is the row. 0: free.
        self._stay = np.zeros(num_rows, np.int64)
        self._stays = 0
        # For each block, the stay and the group that wrote it last.
        self._writer = np.zeros(kv_cache.num_blocks, np.int64)
        self._writers_of_group = num_rows << 32
        self._scratch = np.zeros(max(kv_cache.num_blocks, num_rows), np.int64)
        self._live: dict[int, NewRow] = {}
        self._step_id = -1

    def added(self, request: NewRow) -> None:
        self._live[request.handle] = request

    def ended(self, handle: int) -> None:
        self._live.pop(handle, None)
        if handle in self._row_of:
            self._runs[self._row_of[handle]] = False  # the row has yet to leave

    def scheduled(self, output: SchedulerOutput) -> None:
        """Check all rules of one step."""
        expected = self._step_id + 1
        self._step_id = output.step_id
        if output.step_id != expected:
            self._broken("steps are numbered from 0", "expected step %d", expected)
        self._check_columns(output)
        for gone in output.gone.tolist():
            self._leave(gone)
        for new in output.new:
            self._enter(new)
        if len(output.new_block_row):
            self._check_new_blocks(output)
        self._ahead = output.round_tokens - 1
        if self._ahead:
            self._check_round(output)
        spans = self._advance(output)
        if len(spans.row):
            self._check_rows(output, spans)
            for group, window in enumerate(self._windows):
                if window:
                    self._check_slots(group, spans)

    def answered(self, result: ModelRunnerOutput) -> None:
        """Apply a result: its tokens are no longer pending. Rows of a multi-token step end at their last token."""
        self._pending[result.row] = False
        if self._ahead:
            self._settle(result)

    # ------------------------------------------------------------------ rules
    def _broken(self, rule: str, detail: str, *values: object) -> NoReturn:
        """Raise the violation of a rule; `detail % values` describes it."""
        raise ContractViolation(self._plugin, self._step_id, rule, detail % values) from None

    def _check_columns(self, output: SchedulerOutput) -> None:
        """Check shapes, sums and ranges."""
        num_tokens = output.num_tokens
        num_rows = len(output.row)
        is_equal = (
            num_rows
            == len(num_tokens)
            == len(output.next_token)
            == len(output.samples)
            == len(output.generation)
        )
        if not is_equal:
            self._broken("columns of a step have one length", "%d rows", num_rows)
        total = int(np.add.reduce(num_tokens))
        if total > self._budget:
            self._broken("max_num_batched_tokens", "%d > %d", total, self._budget)
        if total != output.total_tokens:
            self._broken("total_tokens is the sum of num_tokens", "the sum is %d", total)
        if np.count_nonzero(num_tokens < 1):
            self._broken("a scheduled row computes tokens", "num_tokens below 1")
        for rows in (output.row, output.gone, output.new_block_row):
            if len(rows):
                self._check_range(rows, self._num_rows, "max_num_seqs", "row")

    def _check_range(self, values: np.ndarray, stop: Any, rule: str, what: str) -> None:
        """Check that each of `values` is below `stop`, one number for all or one for each."""
        # As unsigned, a negative number is a large one: one comparison finds both.
        outside = values.view(_UNSIGNED[values.itemsize]) >= stop
        if np.count_nonzero(outside):
            found = values[outside][0]
            self._broken(rule, "%s %d is not below %d", what, found, np.max(stop))

    def _leave(self, row: int) -> None:
        if not self._stay[row]:
            self._broken("only running rows leave", "row %d is free", row)
        del self._row_of[int(self._state.handle[row])]
        self._stay[row] = self._waits[row] = self._runs[row] = 0

    def _enter(self, new: NewRow) -> None:
        row = new.row
        handle = new.handle
        length = len(new.token_ids)
        longest = self.context.max_model_len
        if not 0 <= row < self._num_rows:
            self._broken("max_num_seqs", "there is no row %d", row)
        if handle not in self._live:
            self._broken("only known, unfinished requests run", "handle %d", handle)
        if self._stay[row]:
            self._broken("a row holds one request", "row %d is in use", row)
        if handle in self._row_of:
            self._broken("a request has one row", "handle %d has two", handle)
        if length > longest:
            self._broken("max_model_len", "%d tokens in row %d", length, row)
        hit = new.num_computed
        if not 0 <= hit < length:
            self._broken("a hit never covers the last token", "%d of %d", hit, length)
        tables = new.block_ids
        if len(tables) != self._num_groups:
            self._broken("one block table per KV group", "row %d", row)
        most_blocks = self._state.block_table[0].shape[1]
        for group, ids in enumerate(tables):
            count = len(ids)
            if count > most_blocks:
                self._broken("max_model_len", "row %d has %d blocks", row, count)
            self._check_range(ids, self._num_ids[group], "block ids exist", "block")
            if not self._windows[group] and count != (hit > 0):
                self._broken("one state per hit", "row %d has %d", row, count)
        self._check_fields(new, self._live[handle])
        self._limit[row] = new.sampling.max_total_tokens(length - new.num_output, longest)
        self._pending[row] = False
        feeds_back = self.context.feeds_back_tokens and new.sampling.structured_output is None
        self._waits[row] = not feeds_back
        self._runs[row] = True
        for field, *_, column in self._bounded:
            value = getattr(new, field)
            column[row] = hash(value) if value else 0
        self._row_of[handle] = row
        self._stays += self._num_rows
        self._stay[row] = self._stays + row

    def _check_fields(self, new: NewRow, request: NewRow) -> None:
        """Compare a row with its request, which may have more output by now."""
        more = new.token_ids[len(request.token_ids) :]
        expected = msgspec.structs.replace(
            request,
            row=new.row,
            token_ids=np.concatenate((request.token_ids, more)),
            num_computed=new.num_computed,
            num_output=request.num_output + len(more),
            block_ids=new.block_ids,
        )
        encode = Encoder().encode
        for field in NewRow.__struct_fields__:
            found = getattr(new, field)
            wanted = getattr(expected, field)
            if found is not wanted and encode(found) != encode(wanted):
                rule = "a new row is that of its request"
                self._broken(rule, "%s of row %d is %.99r", field, new.row, found)

    def _check_new_blocks(self, output: SchedulerOutput) -> None:
        group = output.new_block_group
        if not len(output.new_block_row) == len(group) == len(output.new_block_id):
            self._broken("columns of a step have one length", "new blocks")
        self._check_range(group, self._num_groups, "one block table per KV group", "group")
        self._check_range(output.new_block_id, self._num_ids[group], "block ids exist", "block")

    def _check_round(self, output: SchedulerOutput) -> None:
        tokens = output.round_tokens
        most = self.context.max_round_tokens
        if not 0 < tokens <= most:
            self._broken("max_round_tokens", "%d of at most %d", tokens, most)
        samples = np.count_nonzero(output.samples)
        if output.new or not samples == len(output.row) == output.total_tokens:
            self._broken("a round holds only rows that decode", "%d tokens", tokens)

    def _settle(self, result: ModelRunnerOutput) -> None:
        """End a multi-token step: rows continue after their tokens."""
        row = result.row
        count = result.offsets[1:] - result.offsets[:-1]
        missing = self._ahead + 1 - count
        is_ragged = len(count) == len(row) and result.offsets[-1] == len(result.token_ids)
        if not is_ragged or np.count_nonzero((count < 1) | (missing < 0)):
            rule = "a round gives each row 1 to round_tokens tokens"
            self._broken(rule, "the worker gave %s", count)
        self._state.num_output[row] -= missing
        self._state.num_computed[row] -= missing

    def _advance(self, output: SchedulerOutput) -> Spans:
        """Advance the columns. Row, group and block ids are in range by now: only a sequence can be too long."""
        if self._ahead:
            num_tokens = output.num_tokens + np.int32(self._ahead)
            output = msgspec.structs.replace(output, num_tokens=num_tokens)
        try:
            return self._state.advance(output)
        except IndexError:
            detail = "a row has more tokens or blocks than %d tokens need"
            self._broken("max_model_len", detail, self.context.max_model_len)

    def _check_rows(self, output: SchedulerOutput, spans: Spans) -> None:
        row = spans.row
        seq_lens = spans.seq_lens
        num_output = self._state.num_output
        idle = row[~self._runs[row]]
        if len(idle):
            self._broken("only running rows are scheduled", "rows %s do not run", idle)
        if not self._distinct(row):
            self._broken("a row is scheduled once per step", "a row appears twice")
        for field, rule, most, column in self._bounded:
            if most:
                found = np.count_nonzero(np.unique(column[row]))
                if found > most:
                    self._broken(rule, "%d different values of %s", found, field)
        if self._ahead:
            num_output[row] += self._ahead
        total = self._state.num_prompt[row] + num_output[row]
        known = total - output.samples
        if np.count_nonzero(seq_lens > known):
            self._broken("only existing tokens are computed", "num_tokens is too large")
        if np.count_nonzero((seq_lens == known) != output.samples):
            self._broken("exactly the last token of a row samples", "samples is wrong")
        if np.count_nonzero(self._waits):
            if np.count_nonzero(self._pending[row]):
                self._broken("no row with a pending token", "a grammar, or no feedback")
            self._pending[row] = self._waits[row] & output.samples
        over = total > self._limit[row]
        if np.count_nonzero(over):
            longest = int(total[over][0])
            rule = "max_model_len" if longest > self.context.max_model_len else "max_tokens"
            self._broken(rule, "row %d would hold %d tokens", row[over][0], longest)

    def _check_slots(self, group: int, spans: Spans) -> None:
        """Check that every token has a slot, and nothing else is written into its block, in this step or while it is
        held.
        """
        size = self._state.block_size
        if np.count_nonzero(self._state.num_blocks[group][spans.row] * size < spans.seq_lens):
            self._broken("every scheduled token has a slot", "a row lacks blocks")
        row, place = blocks_of(spans, size)
        blocks = self._state.block_table[group][row, place].astype(np.intp)
        if not self._distinct(blocks):
            self._broken("one writer per block", "two rows write one block")
        writer = self._stay[row] + group * self._writers_of_group
        earlier = self._writer[blocks]
        for i in np.flatnonzero(earlier != writer).tolist():
            of_group, stay = divmod(int(earlier[i]), self._writers_of_group)
            other = stay % self._num_rows
            if not stay or stay != self._stay[other]:
                continue  # the request that wrote it has left
            if blocks[i] in self._held(of_group, other, spans):
                clash = "rows %d and %d share block %d"
                self._broken("one writer per block", clash, other, row[i], blocks[i])
        self._writer[blocks] = writer

    def _held(self, group: int, row: int, spans: Spans) -> Any:
        """Blocks of the row in a group, except those before its window in this step."""
        state = self._state
        start = spans.start[spans.row == row].min(initial=state.num_computed[row])
        first = max(0, start - self._windows[group] + 1) // state.block_size
        return state.block_table[group][row, first : state.num_blocks[group, row]]

    def _distinct(self, indexes: np.ndarray[Any, np.dtype[np.integer[Any]]]) -> bool:
        if len(indexes) == 1:
            return True
        places = np.arange(len(indexes))
        self._scratch[indexes] = places
        return bool(np.count_nonzero(self._scratch[indexes] == places) == len(indexes))


def blocks_of(spans: Spans, block_size: int) -> tuple[NDArray[np.intp], I32]:
    """Blocks of positions: row [B], and place in the row's block table [B]."""
    row = spans.row
    first = spans.start // block_size
    place = (spans.seq_lens - 1) // block_size
    if np.count_nonzero(first != place):
        count = place - first + 1
        return np.repeat(row, count), joined_ranges(first, count)
    return row, place
