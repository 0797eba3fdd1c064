"""Builds one step: what a scheduler's `choose` talks to. Engine process.

`run` is for one request, `run_rows` for arrays of rows; both advance the columns at once, optimistically, and either
schedule all that was asked or change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tenonry.request import Request, RequestStatus
from tenonry.scheduling.blocks import NewBlocks
from tenonry.step import I32, KNOWN_TO_WORKER, NewRow, SchedulerOutput

if TYPE_CHECKING:
    from tenonry.scheduling.base import BaseScheduler


class StepBuilder:
    """One step in the making.

    `tokens_left`: token budget still free. `now`: the scheduler's clock, seconds.
    """

    def __init__(self, scheduler: BaseScheduler, step_id: int) -> None:
        self._scheduler, self._rows, self._blocks = scheduler, scheduler.rows, scheduler.blocks
        self._step_id = step_id
        self.now = scheduler.context.clock()
        self.tokens_left = scheduler.token_budget
        self._new: list[NewRow] = []
        self._parts: list[tuple[I32, I32, I32, np.ndarray]] = []
        self._added: list[NewBlocks] = []

    # ------------------------------------------------------------------ looking
    @property
    def free_blocks(self) -> int:
        return self._blocks.num_free

    @property
    def free_rows(self) -> int:
        return self._rows.num_free

    @property
    def ready(self) -> I32:
        """Rows that can compute now, in the order they entered: not at their limit, no token missing."""
        rows = self._rows
        running = rows.running()
        if self._scheduler.context.max_concurrent_steps > 1 and len(running):
            can_run = rows.num_tokens[running] < rows.limit[running]
            if not self._scheduler.context.feeds_back_tokens:
                can_run &= rows.pending[running] == 0
            if not can_run.all():
                return running[can_run]
        return running

    @property
    def running(self) -> list[Request]:
        """Running requests, in the order they entered. Costs per request: for schedulers that do not mind."""
        return [self._rows.request(row) for row in self._rows.running().tolist()]

    @property
    def waiting(self) -> Iterator[Request]:
        """Waiting requests in queue order; leave the loop at the first that does not fit."""
        return iter(self._scheduler.waiting)

    def num_uncomputed(self, rows: I32) -> I32:
        """Tokens of each row that were not computed or scheduled yet (1 for a row that merely decodes)."""
        return self._rows.num_tokens[rows] - self._rows.num_computed[rows]

    # ------------------------------------------------------------------ deciding
    def run(self, request: Request, num_tokens: int | None = None) -> bool:
        """Schedule `num_tokens` (by default all, or what the budget allows) of a running or waiting request.

        False, and nothing changed, if there is no budget, row or block for it.
        """
        if request.row < 0:
            return self._start(request, num_tokens)
        row = request.row
        if not self._rows.active[row]:
            return False
        left = int(self._rows.num_tokens[row] - self._rows.num_computed[row])
        count = self._fit(left, num_tokens)
        return count > 0 and self.run_rows(np.array([row], np.int32), np.array([count], np.int32))

    def run_rows(self, rows: I32, num_tokens: I32) -> bool:
        """Schedule `num_tokens[i]` ≥ 1 tokens of each of `rows` (distinct, running, ready); all of them or none."""
        total = int(num_tokens.sum())
        if total > self.tokens_left:
            return False
        start = self._rows.num_computed[rows]
        end = start + num_tokens
        added = self._blocks.grow(rows, end)
        if added is None:
            return False
        if len(added.row):
            self._added.append(added)
        self._commit(rows, start, end, num_tokens, total)
        return True

    def run_ready(self) -> bool:
        """Schedule every ready row: all of its uncomputed tokens, or what the budget allows, decodes first.

        When blocks run out, victims (`scheduler.victim`) are preempted until the others fit. False if nothing ran.
        """
        while True:
            rows = self.ready
            if len(rows) == 0:
                return False
            count = self.num_uncomputed(rows)
            if int(count.sum()) > self.tokens_left:
                rows, count = self._cut_to_budget(rows, count)
            if len(rows) and self.run_rows(rows, count):
                return True
            if len(rows) == 0 or not self._preempt_one():
                return False

    def preempt(self, request: Request) -> None:
        """Take a running request's row and blocks away; it waits again, keeping the tokens it has.

        Raises ValueError for a request that this step already runs.
        """
        if self._rows.scheduled_in[request.row] == self._step_id:
            raise ValueError(
                f"request {request.request_id!r} already runs in step {self._step_id}; it cannot be preempted"
            )
        self._scheduler.preempt(request)

    # ------------------------------------------------------------------ details
    def _cut_to_budget(self, rows: I32, count: I32) -> tuple[I32, I32]:
        """Decodes first, then earlier rows; the last one may get a part."""
        first = np.argsort(count > 1, kind="stable")
        rows, count = rows[first], count[first]
        room = self.tokens_left - (np.cumsum(count) - count)
        cut = np.minimum(count, room) if self._scheduler.chunked_prefill else np.where(count <= room, count, 0)
        keep = cut > 0
        return rows[keep], cut[keep].astype(np.int32)

    def _preempt_one(self) -> bool:
        """Preempt the victim among the running requests that this step does not run yet; the last one is spared."""
        running = [request for request in self.running if self._rows.scheduled_in[request.row] != self._step_id]
        if len(running) < 2:
            return False
        self.preempt(self._scheduler.victim(running))
        return True

    def _fit(self, left: int, wanted: int | None) -> int:
        count = left if wanted is None else min(left, wanted)
        if count <= self.tokens_left:
            return count
        return self.tokens_left if self._scheduler.chunked_prefill else 0

    def _start(self, request: Request, num_tokens: int | None) -> bool:
        rows, blocks = self._rows, self._blocks
        if self.tokens_left <= 0 or rows.num_free == 0 or request not in self._scheduler.waiting:
            return False
        row = rows.enter(request)
        match = blocks.match(request, row)
        if match is None or not match.ready:
            return self._hold(request, row, match is not None)
        rows.num_computed[row] = match.num_computed
        count = self._fit(request.num_tokens - match.num_computed, num_tokens)
        one = np.array([row], np.int32)
        if count <= 0 or blocks.grow(one, np.array([match.num_computed + count], np.int32)) is None:
            self._scheduler.undo_start(request, row)
            return False
        self._scheduler.started(request, row, match.num_computed, self.now)
        self.enter_row(request, row, match.num_computed)
        start = np.array([match.num_computed], np.int32)
        self._commit(one, start, start + count, np.array([count], np.int32), count)
        return True

    def enter_row(self, request: Request, row: int, num_computed: int) -> None:
        """Announce a row to the workers, with all blocks it has now."""
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

    def _hold(self, request: Request, row: int, attached: bool) -> bool:
        """The request cannot run yet; it keeps its row if blocks are on their way to it."""
        if attached:
            self._scheduler.waiting.remove(request)
            request.status = RequestStatus.WAITING_FOR_KV
        else:
            self._scheduler.undo_start(request, row)
        return False

    def _commit(self, rows: I32, start: I32, end: I32, num_tokens: I32, total: int) -> None:
        columns = self._rows
        samples = end == columns.num_tokens[rows]
        known = (num_tokens == 1) & (columns.pending[rows] == 0)
        next_token = columns.token_ids[rows, start]
        if not known.all():
            next_token = np.where(known, next_token, np.int32(KNOWN_TO_WORKER))
        columns.num_computed[rows] = end
        columns.scheduled_in[rows] = self._step_id
        columns.pending[rows] += samples
        columns.num_tokens[rows] += samples
        self.tokens_left -= total
        self._parts.append((rows, num_tokens, next_token, samples))

    def build(self) -> SchedulerOutput:
        """The finished step; full blocks with known ids are registered in the prefix cache."""
        output = SchedulerOutput(step_id=self._step_id, gone=self._rows.take_gone(), new=self._new)
        if self._parts:
            row, num_tokens, next_token, samples = (
                self._parts[0] if len(self._parts) == 1 else tuple(map(np.concatenate, zip(*self._parts, strict=True)))
            )
            output.row, output.num_tokens, output.next_token, output.samples = (
                row,
                num_tokens,
                next_token,
                samples,
            )
            output.generation = self._rows.generation[row]
            known = self._rows.num_tokens[row] - self._rows.pending[row]
            self._blocks.register(row, np.minimum(known, self._rows.num_computed[row]))
        if self._added:
            parts = self._added
            block = parts[0] if len(parts) == 1 else NewBlocks(*map(np.concatenate, zip(*parts, strict=True)))
            output.new_block_row, output.new_block_group, output.new_block_id = block
        output.total_tokens = self._scheduler.token_budget - self.tokens_left
        output.connector_metadata = self._blocks.connector_metadata()
        return output
