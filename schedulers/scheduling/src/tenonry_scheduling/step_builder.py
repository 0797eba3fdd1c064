"""Builds one step: what a scheduler's `choose` talks to. Engine process.

`run` is for one request, `run_rows` for arrays of rows; both advance the columns at once, optimistically, and either
schedule all that was asked or change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from tenonry.request import Request, RequestStatus
from tenonry.step import I32, KNOWN_TO_WORKER, NewRow, SchedulerOutput
from tenonry_scheduling.blocks import NewBlocks
from tenonry_scheduling.rows import Index

if TYPE_CHECKING:
    from tenonry_scheduling.base import BaseScheduler

Part = tuple[Index, I32, I32, np.ndarray]  # rows, num_tokens, next_token, samples


class StepBuilder:
    """One step in the making.

    `waiting`: requests in queue order; leave the loop at the first that does not fit. `tokens_left`: token budget still
    free. `now`: the scheduler's clock, seconds. `full`: a request was turned away for lack of budget, rows or blocks.
    `preempted`: requests that lost their row to this step.
    """

    def __init__(self, scheduler: BaseScheduler) -> None:
        self._scheduler, self._rows, self._blocks = scheduler, scheduler.rows, scheduler.blocks
        self._step_id = scheduler.rows.step
        self.waiting: Iterable[Request] = scheduler.waiting
        self.now = scheduler.context.clock()
        self.tokens_left = scheduler.token_budget
        self.full = False
        self.preempted: list[Request] = []
        self._new: list[NewRow] = []
        self._parts: list[Part] = []
        self._started: list[tuple[int, int, int, bool]] = []  # as in `_parts`, one row each
        self._added: list[NewBlocks] = []

    # ------------------------------------------------------------------ looking
    @property
    def free_blocks(self) -> int:
        return self._blocks.num_free

    @property
    def free_rows(self) -> int:
        return self._rows.num_free

    @property
    def num_running(self) -> int:
        return len(self._rows.active)

    @property
    def ready(self) -> Index:
        """Rows that this step can still run, in the order they entered: not at their limit, no token missing."""
        rows, context = self._rows, self._scheduler.context
        running = rows.running()
        if self._parts or self._started:
            running = running[rows.scheduled_in[running] != self._step_id]
        if context.max_concurrent_steps > 1 and len(running):
            can_run = rows.num_tokens[running] < rows.limit[running]
            if not context.feeds_back_tokens:
                can_run &= rows.pending[running] == 0
            if np.count_nonzero(can_run) < len(running):
                return running[can_run]
        return running

    @property
    def running(self) -> list[Request]:
        """Running requests, in the order they entered. Costs per request: for schedulers that do not mind."""
        return [self._rows.request(row) for row in self._rows.running().tolist()]

    def num_uncomputed(self, rows: Index) -> I32:
        """Tokens of each row that were not computed or scheduled yet (1 for a row that merely decodes)."""
        uncomputed: I32 = self._rows.num_tokens[rows] - self._rows.num_computed[rows]
        return uncomputed

    # ------------------------------------------------------------------ deciding
    def run(self, request: Request, num_tokens: int | None = None) -> bool:
        """Schedule `num_tokens` (by default all, or what the budget allows) of a running or waiting request.

        A waiting one gets blocks for all its tokens at once. False, and nothing changed, if there is no budget, row or
        block for it, if it runs in this step already, or if its KV is on the way.
        """
        if request.row < 0:
            return self._start(request, num_tokens)
        rows, row = self._rows, request.row
        if row not in rows.active or rows.scheduled_in[row] == self._step_id:
            return False
        count = self._fit(int(rows.num_tokens[row]) - int(rows.num_computed[row]), num_tokens)
        return count > 0 and self._run(np.array([row]), np.array([count], np.int32), count)

    def run_rows(self, rows: Index, num_tokens: I32) -> bool:
        """Schedule `num_tokens[i]` ≥ 1 tokens of each of `rows` (distinct, from `ready`); all of them or none."""
        total = int(num_tokens.sum())
        if total > self.tokens_left:
            return False
        return self._run(np.asarray(rows, np.intp), np.asarray(num_tokens, np.int32), total)

    def run_ready(self, max_tokens: int | None = None) -> bool:
        """Schedule every ready row: all of its uncomputed tokens, or what the budget allows, decodes first.

        `max_tokens` bounds each row's share. When blocks run out, victims (`scheduler.victim`) are preempted until the
        others fit. False if nothing ran.
        """
        while True:
            rows = self.ready
            if len(rows) == 0:
                return False
            count = self.num_uncomputed(rows)
            if max_tokens is not None:
                np.minimum(count, max_tokens, out=count)
            total = int(count.sum())
            if total > self.tokens_left:
                rows, count = self._cut_to_budget(rows, count)
                total = int(count.sum())
            if total == 0:
                return False
            if self._run(rows, count, total):
                return True
            if not self._preempt_one():
                return False

    def preempt(self, request: Request) -> None:
        """Take a running request's row and blocks away; it waits again, keeping the tokens it has.

        Raises ValueError for a request that this step already runs, or that does not run at all.
        """
        if request.row < 0 or request.row not in self._rows.active:
            raise ValueError(
                f"request {request.request_id!r} is not running; it cannot be preempted"
            )
        if self._rows.scheduled_in[request.row] == self._step_id:
            raise ValueError(
                f"request {request.request_id!r} already runs in step {self._step_id}; it cannot be preempted"
            )
        self._scheduler.preempt(request)
        self.preempted.append(request)

    # ------------------------------------------------------------------ details
    def _cut_to_budget(self, rows: Index, count: I32) -> tuple[Index, I32]:
        """Decodes first, then earlier rows; the last one may get a part."""
        first = np.argsort(count > 1, kind="stable")
        rows, count = rows[first], count[first]
        room = np.maximum(self.tokens_left - (np.cumsum(count) - count), 0)
        cut = np.minimum(count, room)
        if not self._scheduler.chunked_prefill:  # what exceeds a whole budget is split all the same
            cut[(cut < count) & (count <= self._scheduler.token_budget)] = 0
        keep = cut.nonzero()[0]
        return rows[keep], cut[keep].astype(np.int32)

    def _preempt_one(self) -> bool:
        """Preempt the victim among the ready requests; the last one is spared."""
        ready = self.ready
        if len(ready) < 2:
            return False
        self.preempt(self._scheduler.victim([self._rows.request(row) for row in ready.tolist()]))
        return True

    def _fit(self, left: int, wanted: int | None) -> int:
        count = left if wanted is None else min(left, wanted)
        if count <= self.tokens_left:
            return count
        splits = self._scheduler.chunked_prefill or count > self._scheduler.token_budget
        return self.tokens_left if splits else 0

    def _start(self, request: Request, num_tokens: int | None) -> bool:
        rows, blocks, scheduler = self._rows, self._blocks, self._scheduler
        if request not in scheduler.waiting:
            return False
        if self.tokens_left <= 0 or rows.num_free == 0:
            self.full = True
            return False
        row = rows.enter(request)
        match = blocks.match(request, row)
        if match is None:
            scheduler.undo_start(request, row)
            return False
        if not match.ready:  # it keeps its row: blocks are on their way to it
            scheduler.waiting.discard(request)
            request.status = RequestStatus.WAITING_FOR_KV
            return False
        start = match.num_computed
        rows.num_computed[row] = start
        count = self._fit(request.num_tokens - start, num_tokens)
        if (
            count <= 0
            or blocks.grow(np.array([row]), np.array([request.num_tokens], np.int32)) is None
        ):
            scheduler.undo_start(request, row)
            self.full = True
            return False
        self._enter(request, row, start)
        self._commit_one(request, row, start, count)
        return True

    def _commit_one(self, request: Request, row: int, start: int, count: int) -> None:
        """What `_commit` does, for one row that just started: no arrays of one."""
        columns, end = self._rows, start + count
        samples = end == request.num_tokens
        columns.num_computed[row] = end
        columns.scheduled_in[row] = self._step_id
        if samples:
            columns.pending[row] += 1
            columns.num_tokens[row] += 1
        self._started.append((row, count, int(request.token_ids[start]), samples))
        self._blocks.register(np.array([row]), np.array([end], np.int32))
        self.tokens_left -= count

    def _enter(self, request: Request, row: int, num_computed: int) -> None:
        """The request starts: tell its client, and the workers, with all blocks that the row has now."""
        self._scheduler.started(request, row, num_computed, self.now)
        source = request.source
        self._rows.announced[row] = True
        self._new.append(
            NewRow(
                row=row,
                handle=request.handle,
                token_ids=request.token_ids,
                num_computed=num_computed,
                num_output=request.num_output_tokens,
                block_ids=self._blocks.table(row),
                sampling=source.sampling_params,
                stop_token_ids=source.stop_token_ids,
                bad_words=source.bad_words,
                adapter=source.adapter,
                features=source.features,
            )
        )

    def _let_in(self, rows: Index, added: NewBlocks) -> NewBlocks:
        """Rows whose KV came start when they first run, with all their blocks; returns the blocks of the others."""
        late = self._scheduler.arrived.intersection(rows.tolist())
        for row in sorted(late):
            self._enter(self._rows.request(row), row, int(self._rows.num_computed[row]))
        self._scheduler.arrived -= late
        others = np.isin(added.row, list(late), invert=True)
        return NewBlocks(*(column[others] for column in added))

    def _run(self, rows: Index, num_tokens: I32, total: int) -> bool:
        start = self._rows.num_computed[rows]
        end = start + num_tokens
        added = self._blocks.grow(rows, end)
        if added is None:
            self.full = True
            return False
        if self._scheduler.arrived:
            added = self._let_in(rows, added)
        if len(added.row):
            self._added.append(added)
        self._commit(rows, start, end, num_tokens)
        self.tokens_left -= total
        return True

    def _commit(self, rows: Index, start: I32, end: I32, num_tokens: I32) -> None:
        """Advance the columns to the end of the step, and cache what becomes full, for others of this step to find."""
        columns = self._rows
        length, pending = columns.num_tokens[rows], columns.pending[rows]
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
        self._parts.append((rows, num_tokens, next_token, samples))
        self._blocks.register(rows, known)

    def build(self) -> SchedulerOutput:
        """The finished step."""
        output = SchedulerOutput(step_id=self._step_id, gone=self._rows.take_gone(), new=self._new)
        if self._started:
            row, count, token, samples = zip(*self._started, strict=True)
            self._parts.append(
                (
                    np.array(row),
                    np.array(count, np.int32),
                    np.array(token, np.int32),
                    np.array(samples, np.bool_),
                )
            )
        if self._parts:
            row, output.num_tokens, output.next_token, output.samples = _join(self._parts)
            output.row, output.generation = row.astype(np.int32), self._rows.generation[row]
        if self._added:
            output.new_block_row, output.new_block_group, output.new_block_id = _join(self._added)
        output.total_tokens = self._scheduler.token_budget - self.tokens_left
        output.connector_metadata = self._blocks.connector_metadata()
        return output


def _join(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(map(np.concatenate, zip(*parts, strict=True)))
