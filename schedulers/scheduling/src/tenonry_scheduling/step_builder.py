"""Builder of one step, passed to a scheduler's `choose`. Engine process.

`run` is for one request, `run_rows` for arrays of rows; both advance the columns immediately and optimistically, or
change nothing. Rows that compute a prompt with log-probabilities are limited to their share of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenonry.request import Request
from tenonry.step import I32, KNOWN_TO_WORKER, NewRow, SchedulerOutput
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.budget import StepBudget
from tenonry_scheduling.chunks import ChunkLimits
from tenonry_scheduling.lifecycle import Lifecycle
from tenonry_scheduling.rounds import Rounds
from tenonry_scheduling.rows import Index

ScheduledRows = tuple[Index, I32, I32, NDArray[np.bool_]]  # row, num_tokens, next_token, samples


class StepBuilder:
    """One step during construction.

    `waiting`: requests in queue order; leave the loop at the first that does not fit. `now`: the scheduler's clock,
    seconds. `full`: a request did not fit into budget, rows or blocks. `preempted`: requests that lost their row to
    this step.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        victim: Callable[[list[Request]], Request],
        budget: StepBudget,
        rounds: Rounds | None = None,
    ) -> None:
        self._lifecycle = lifecycle
        self._rows = lifecycle.rows
        self._blocks = lifecycle.blocks
        self._victim = victim
        self._budget = budget
        self._rounds = rounds
        self._snapshots = lifecycle.blocks.takes_snapshots
        self._chunks = ChunkLimits(lifecycle, budget)
        self._step_id = lifecycle.rows.step
        self.waiting: Iterable[Request] = lifecycle.waiting
        self.now = lifecycle.context.clock()
        self.full = False
        self.preempted: list[Request] = []
        self._new: list[NewRow] = []
        self._scheduled: list[ScheduledRows] = []
        self._started: list[tuple[int, int, int, bool]] = []  # as in `_scheduled`
        self._added: list[NewBlocks] = []

    # ------------------------------------------------------------------ looking
    @property
    def tokens_left(self) -> int:
        """Remaining token budget."""
        return self._budget.tokens_left

    @property
    def prompt_logprob_tokens_left(self) -> int:
        """Remaining tokens of prompts with log-probabilities in this step; 0 or less: none."""
        return self._budget.prompt_logprob_tokens_left

    @property
    def free_blocks(self) -> int:
        """Number of KV blocks that can be allocated now."""
        return self._blocks.num_free

    @property
    def free_rows(self) -> int:
        """Number of requests that may start in addition to the running ones."""
        return self._rows.num_free

    @property
    def num_running(self) -> int:
        """Running requests."""
        return len(self._rows.active)

    @property
    def ready(self) -> Index:
        """Rows that this step can still run, in start order: not at their limit, without a missing token."""
        rows = self._rows
        running = rows.running()
        if self._scheduled or self._started:
            running = running[rows.scheduled_in[running] != self._step_id]
        context = self._lifecycle.context
        if context.max_concurrent_steps > 1 and len(running):
            can_run = rows.num_tokens[running] < rows.limit[running]
            if not context.feeds_back_tokens:
                can_run &= rows.pending[running] == 0
            elif rows.num_grammars:
                is_pending = rows.pending[running] > 0
                can_run &= ~(is_pending & rows.has_grammar[running])
            if np.count_nonzero(can_run) < len(running):
                return running[can_run]
        return running

    @property
    def running(self) -> list[Request]:
        """Running requests, in start order. Costs time per request, unlike `ready`."""
        rows = self._rows
        return [rows.request(row) for row in rows.running().tolist()]

    def num_uncomputed(self, rows: Index) -> I32:
        """Uncomputed, unscheduled tokens of each row (1 for a decoding row)."""
        columns = self._rows
        uncomputed: I32 = columns.num_tokens[rows] - columns.num_computed[rows]
        return uncomputed

    # ------------------------------------------------------------------ deciding
    def run(self, request: Request, num_tokens: int | None = None) -> bool:
        """Schedule `num_tokens` (by default all within the budget) of a running or waiting request.

        A waiting request reserves the blocks of all its tokens. Fewer than `num_tokens` run if a prompt may be split:
        at the end of the budget, and of the share of prompts with log-probabilities (`prompt_logprob_tokens_left`), at
        a snapshot of the row's state, and before an image that this step does not encode. False, without a change, if
        budget, rows or blocks do not suffice (`full` is set), and also if it runs in this step already, is at its
        length limit, waits for its last sampled token or for its K/V, that share or that of images is used up, or the
        rows have `max_loras` other adapters: later ones may still run.
        """
        row = request.row
        if row < 0:
            return self._start(request, num_tokens)
        if not self._is_ready(row):
            return False
        rows = self._rows
        uncomputed = int(rows.num_tokens[row] - rows.num_computed[row])
        count = self._chunks.fit(row, uncomputed, num_tokens)
        if count <= 0:
            return False
        num_to_run = np.array([count], np.int32)
        return self._run(np.array([row]), num_to_run, count)

    def run_rows(self, rows: Index, num_tokens: I32) -> bool:
        """Schedule `num_tokens[i]` ≥ 1 tokens of each of `rows` (distinct, from `ready`); all of them or none.

        Rows that compute a prompt with log-probabilities run fewer, or stay ready, where their share of the step ends
        (`prompt_logprob_tokens_left`), earlier rows first, and rows run no further than to a snapshot of their state,
        or to an image that this step does not encode. False, without a change, if nothing remains, or budget or blocks
        do not suffice for it.
        """
        rows = np.asarray(rows, np.intp)
        num_tokens = np.asarray(num_tokens, np.int32)
        if self._chunks.apply:
            rows, num_tokens = self._chunks.cut(rows, num_tokens)
        total = int(num_tokens.sum())
        if not 0 < total <= self._budget.tokens_left:
            return False
        return self._run(rows, num_tokens, total)

    def run_ready(self, max_tokens: int | None = None) -> bool:
        """Schedule every ready row: all of its uncomputed tokens within the budget, decodes first.

        `max_tokens` bounds each row's share. When blocks run out, victims (`BaseScheduler.victim`) are preempted until
        the others fit. False if nothing ran.
        """
        columns = self._rows
        budget = self._budget
        while True:
            rows = self.ready
            if len(rows) == 0:
                return False
            count = columns.num_tokens[rows] - columns.num_computed[rows]
            if max_tokens is not None:
                np.minimum(count, max_tokens, out=count)
            if self._chunks.apply:
                rows, count = self._chunks.cut(rows, count)
            total = int(count.sum())
            if total > budget.tokens_left:
                rows, count = budget.cut(rows, count)
                rows, count = self._chunks.uncut(rows, count, may_extend=False)
                total = int(count.sum())
            if total == 0:
                return False
            if self._run(rows, count, total):
                return True
            ready = self.ready
            if len(ready) < 2:
                return False
            self.preempt(self._victim([columns.request(row) for row in ready.tolist()]))

    def preempt(self, request: Request) -> None:
        """Remove a running request's row and blocks; it waits again, with its tokens.

        Raises ValueError for a request that this step already runs, or that does not run at all.
        """
        row = request.row
        if row not in self._rows.active:
            raise ValueError(
                f"request {request.request_id!r} is not running; it cannot be preempted"
            )
        if self._rows.scheduled_in[row] == self._step_id:
            raise ValueError(
                f"request {request.request_id!r} already runs in step {self._step_id}; it cannot be preempted"
            )
        self._lifecycle.preempt(request)
        self.preempted.append(request)

    def build(self) -> SchedulerOutput:
        """Return the finished step. Called once, by `BaseScheduler.schedule`."""
        output = SchedulerOutput(
            step_id=self._step_id,
            gone=self._rows.take_gone(),
            new=self._new,
            total_tokens=self._budget.num_tokens - self._budget.tokens_left,
        )
        if self._started:
            started = zip(*self._started, strict=True)
            row, num_tokens, next_token, samples = started
            self._scheduled.append(
                (
                    np.array(row),
                    np.array(num_tokens, np.int32),
                    np.array(next_token, np.int32),
                    np.array(samples, np.bool_),
                )
            )
        if self._scheduled:
            scheduled = _join(self._scheduled)
            row, output.num_tokens, output.next_token, output.samples = scheduled
            output.row = self._rows.as_i32(row)
            output.generation = self._rows.generation[row]
            if self._rounds is not None:
                self._add_ahead(self._rounds.extend(row, output, self.now))
        if self._added:
            added = _join(self._added)
            output.new_block_row, output.new_block_group, output.new_block_id = added
        output.connector_metadata = self._blocks.connector_metadata()
        output.prepare = self._lifecycle.grammars.asks()
        return output

    def _add_ahead(self, ahead: NewBlocks | None) -> None:
        """Allocate blocks for tokens beyond this step's first; those of one row stay adjacent."""
        if ahead is None or not len(ahead.row):
            return
        added = _join([*self._added, ahead])
        order = np.argsort(added[0], kind="stable")
        self._added = [NewBlocks(*(column[order] for column in added))]

    # ------------------------------------------------------------------ what fits
    def _is_ready(self, row: int) -> bool:
        """Return True if `row` is in `ready`."""
        rows = self._rows
        has_fed_back = self._lifecycle.context.feeds_back_tokens and not rows.has_grammar[row]
        return bool(
            row in rows.active
            and rows.scheduled_in[row] != self._step_id
            and rows.num_tokens[row] < rows.limit[row]
            and (has_fed_back or rows.pending[row] == 0)
        )

    # ------------------------------------------------------------------ starting a request
    def _start(self, request: Request, num_tokens: int | None) -> bool:
        rows = self._rows
        lifecycle = self._lifecycle
        if request not in lifecycle.waiting:
            return False
        if self._budget.tokens_left <= 0 or rows.num_free == 0:
            self.full = True
            return False
        if self._budget.prompt_logprob_tokens_left <= 0:
            if request.source.sampling_params.prompt_logprobs is not None:
                return False
        if lifecycle.must_wait(request):
            self.full |= lifecycle.is_closed
            return False
        row = rows.enter(request)
        match = self._blocks.match(request, row)
        if match is None:
            lifecycle.undo_start(request, row)
            return False
        if not match.ready:
            lifecycle.wait_for_kv(request)
            return False
        start = match.num_computed
        rows.num_computed[row] = start
        count = self._chunks.fit(row, request.num_tokens - start, num_tokens)
        count, waits = self._chunks.fit_images(request, start, count)
        if count <= 0 or not self._blocks.reserve(row, request.num_tokens, start + count):
            lifecycle.undo_start(request, row)
            self.full |= lifecycle.is_closed or not waits
            return False
        lifecycle.start(request, row, start, self.now)
        self._new.append(lifecycle.announce(request, row, start, self.now))
        self._commit_start(request, row, start, count)
        return True

    def _announce_arrived(self, rows: Index, added: NewBlocks) -> NewBlocks:
        """Send rows with loaded K/V, with all their blocks, when they first run; returns other rows' blocks."""
        columns = self._rows
        arrived = self._lifecycle.arrived.intersection(rows.tolist())
        for row in sorted(arrived):
            request = columns.request(row)
            num_computed = int(columns.num_computed[row])
            self._new.append(self._lifecycle.announce(request, row, num_computed, self.now))
        self._lifecycle.arrived -= arrived
        was_known = np.isin(added.row, list(arrived), invert=True)
        return NewBlocks(*(column[was_known] for column in added))

    def _commit_start(self, request: Request, row: int, start: int, count: int) -> None:
        """As `_commit`, for one row that just started, without arrays."""
        columns = self._rows
        end = start + count
        samples = end == request.num_tokens
        columns.num_computed[row] = end
        columns.scheduled_in[row] = self._step_id
        if samples:
            columns.pending[row] += 1
            columns.num_tokens[row] += 1
        next_token = int(request.token_ids[start])
        self._started.append((row, count, next_token, samples))
        ends = np.array([end], np.int32)
        self._register(np.array([row]), ends, ends)
        self._budget.tokens_left -= count
        if self._chunks.count:
            self._chunks.advance([row], [count])

    # ------------------------------------------------------------------ advancing rows
    def _run(self, rows: Index, num_tokens: I32, total: int) -> bool:
        start = self._rows.num_computed[rows]
        end = start + num_tokens
        added = self._blocks.grow(rows, end)
        if added is None:
            self.full = True
            return False
        if self._lifecycle.arrived:
            added = self._announce_arrived(rows, added)
        if len(added.row):
            self._added.append(added)
        self._commit(rows, start, end, num_tokens)
        self._budget.tokens_left -= total
        if self._chunks.count:
            self._chunks.advance(rows.tolist(), num_tokens.tolist())
        return True

    def _commit(self, rows: Index, start: I32, end: I32, num_tokens: I32) -> None:
        """Advance the columns to the end of the step, and cache blocks that become full, for use in this step."""
        columns = self._rows
        length = columns.num_tokens[rows]
        pending = columns.pending[rows]
        samples = end == length
        next_token = columns.token_ids[rows, start]
        known = end
        if np.count_nonzero(pending):
            next_token[pending > 0] = KNOWN_TO_WORKER
            known = np.minimum(end, length - pending)
        columns.num_computed[rows] = end
        columns.scheduled_in[rows] = self._step_id
        columns.pending[rows] = pending + samples
        columns.num_tokens[rows] = length + samples
        self._scheduled.append((rows, num_tokens, next_token, samples))
        self._register(rows, known, end)

    def _register(self, rows: Index, known: I32, end: I32) -> None:
        """Cache the blocks that the rows compute up to `end`, within their `known` tokens."""
        self._blocks.register(rows, known)
        if self._snapshots:
            saved = self._blocks.save_states(rows, end)
            if len(saved.row):
                self._added.append(saved)


def _join(columns: list[Any]) -> Any:
    """Concatenate several tuples of columns."""
    if len(columns) == 1:
        return columns[0]
    by_column = zip(*columns, strict=True)
    return tuple(map(np.concatenate, by_column))
