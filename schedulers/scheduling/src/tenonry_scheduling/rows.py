"""Columns of the running requests, on the scheduler's side. Engine process.

A row is entered when a request starts to run and left when it ends or is preempted. Leaving raises the row's
generation, so that results of steps launched before are recognised and dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tenonry.request import Request
from tenonry.step import I32, NO_ROWS

Index = NDArray[np.intp]  # numpy converts every other integer type each time it indexes with it
UNKNOWN = -1
STOP_MASK = 0xFFFF


class Rows:
    """Numpy columns over `max_num_seqs` rows (S).

    token_ids i32[S, max_model_len+1]; num_tokens i32[S] includes pending tokens; num_computed i32[S] is optimistic: it
    includes everything scheduled so far; pending i32[S] tokens scheduled to be sampled whose ids are unknown yet; limit
    i32[S] total tokens at which the request ends, or is preempted to be computed again (`restart_after`: the most
    tokens that it may have started with); stop_from i32[S] total tokens from which stop ids count; stop_ids i32[S, W]
    (−1 fills); may_stop bool[65536] true if some row ever stopped at an id with these low bits; handle u64[S];
    generation i32[S]; scheduled_in i64[S] the last step that scheduled the row; announced bool[S] true once the row was
    sent to the workers; has_grammar bool[S] rows with structured output, `num_grammars` of them, which never run with a
    pending token.

    `active`: rows that may be scheduled, in the order in which they were activated (a dict keeps that order).
    `logprob_rows`: rows whose tokens come with log-probabilities. `prompt_logprob_rows`: rows that still compute a
    prompt with log-probabilities. `step`: number of the step being built, set by the scheduler. `left_in`: value of
    `step` when a row last left; results of this step and later ones cannot be out of date.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, restart_after: int = 0) -> None:
        self.size = max_num_seqs
        self._restart_after = restart_after
        self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)
        self.num_tokens = self._column()
        self.num_computed = self._column()
        self.pending = self._column()
        self.limit = self._column()
        self.stop_from = self._column()
        self.generation = self._column()
        self.handle = np.zeros(max_num_seqs, np.uint64)
        self.stop_ids = np.full((max_num_seqs, 2), UNKNOWN, np.int32)
        self.may_stop = np.zeros(STOP_MASK + 1, np.bool_)
        self.announced = np.zeros(max_num_seqs, np.bool_)
        self.has_grammar = np.zeros(max_num_seqs, np.bool_)
        self.num_grammars = 0
        self.scheduled_in = np.full(max_num_seqs, -1, np.int64)
        self.active: dict[int, None] = {}
        self.logprob_rows: set[int] = set()
        self.prompt_logprob_rows: set[int] = set()
        self.step = 0
        self.left_in = 0
        self.gone: list[int] = []
        self.requests: list[Request | None] = [None] * max_num_seqs
        rows = range(max_num_seqs)
        self._free = list(reversed(rows))  # the lowest row is taken first
        self._running: Index | None = None  # `active` as an array, until that changes
        self._running_i32: I32 | None = None

    def _column(self) -> I32:
        return np.zeros(self.size, np.int32)

    @property
    def num_free(self) -> int:
        """Number of rows without a request."""
        return len(self._free)

    def running(self) -> Index:
        """Active rows in order of activation. Read-only, and the same array until that order changes."""
        running = self._running
        if running is None:
            running = np.fromiter(self.active, np.intp, len(self.active))
            running.setflags(write=False)
            self._running = running
            self._running_i32 = None
        return running

    def as_i32(self, rows: Index) -> I32:
        """`rows` as workers receive them. Read-only, and the same array for the same `running()`."""
        if rows is not self._running:
            return rows.astype(np.int32)
        if self._running_i32 is None:
            self._running_i32 = rows.astype(np.int32)
            self._running_i32.setflags(write=False)
        return self._running_i32

    def enter(self, request: Request) -> int:
        """Assign a row to `request` and fill its columns; the row is not active yet."""
        row = self._free.pop()
        params = request.source.sampling_params
        length = len(request.token_ids)
        self.token_ids[row, :length] = request.token_ids
        self.num_tokens[row] = length
        self.num_computed[row] = 0
        self.pending[row] = 0
        limit = request.max_total_tokens
        if length <= self._restart_after < limit:
            limit = self._restart_after + 1
        self.limit[row] = limit
        # A number beyond the longest sequence means never; max_tokens and min_tokens may be close to 2³¹.
        earliest = request.num_prompt_tokens + params.min_tokens
        longest = self.token_ids.shape[1]
        self.stop_from[row] = min(earliest, longest)
        self.handle[row] = request.handle
        stop_ids = request.source.stop_token_ids
        if stop_ids or self.stop_ids[row, 0] != UNKNOWN:
            self._set_stop_ids(row, stop_ids)
        if params.logprobs is not None:
            self.logprob_rows.add(row)
        if params.prompt_logprobs is not None:
            self.prompt_logprob_rows.add(row)
        if params.structured_output is not None:
            self.has_grammar[row] = True
            self.num_grammars += 1
        self.requests[row] = request
        request.row = row
        return row

    def activate(self, row: int) -> None:
        """Permit scheduling of the row from now on."""
        self.active[row] = None
        self._running = None

    def save(self, row: int) -> None:
        """Update the request with all token ids known so far."""
        request = self.request(row)
        num_tokens = int(self.num_tokens[row])
        num_pending = int(self.pending[row])
        known = num_tokens - num_pending
        if known != len(request.token_ids):
            request.token_ids = self.token_ids[row, :known].copy()
            request.num_output_tokens = known - request.num_prompt_tokens

    def leave(self, row: int) -> None:
        """Free the row; its request keeps all token ids known so far."""
        self.save(row)
        self.request(row).row = -1
        self.requests[row] = None
        self.logprob_rows.discard(row)
        self.prompt_logprob_rows.discard(row)
        if self.has_grammar[row]:
            self.has_grammar[row] = False
            self.num_grammars -= 1
        self.generation[row] += 1
        self.left_in = self.step
        if self.announced[row]:
            self.announced[row] = False
            self.gone.append(row)
        if row in self.active:
            del self.active[row]
            self._running = None
        self._free.append(row)

    def take_gone(self) -> I32:
        """Return announced rows that left since the last call."""
        if not self.gone:
            return NO_ROWS
        gone = np.array(self.gone, np.int32)
        self.gone = []
        return gone

    def request(self, row: int) -> Request:
        """Return the request in `row`. Raises LookupError if there is none."""
        request = self.requests[row]
        if request is None:
            raise LookupError(f"row {row} holds no request")
        return request

    def _set_stop_ids(self, row: int, ids: tuple[int, ...]) -> None:
        width = self.stop_ids.shape[1]
        if len(ids) > width:
            wider = np.full((self.size, len(ids)), UNKNOWN, np.int32)
            wider[:, :width] = self.stop_ids
            self.stop_ids = wider
        self.stop_ids[row] = UNKNOWN
        self.stop_ids[row, : len(ids)] = ids
        for token_id in ids:
            self.may_stop[token_id & STOP_MASK] = True
