"""The requests of one scheduler, from arrival to their end: queue, rows and KV blocks change together. Engine process.

`BaseScheduler`, `StepBuilder` and `ResultReader` share one `Lifecycle`; it depends on none of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.kv_cache import KVCacheGroup, LengthClasses
from tenonry.messages import FinishedOutput, ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.step import NewRow
from tenonry_scheduling.adapters import AdapterLimit
from tenonry_scheduling.blocks import BlockManager
from tenonry_scheduling.encoder import EncoderLimit
from tenonry_scheduling.grammars import GrammarRequests
from tenonry_scheduling.rows import Rows
from tenonry_scheduling.waiting import WaitingQueue
from tenonry_scheduling.whole import WholePieces


def length_classes(groups: Iterable[KVCacheGroup]) -> LengthClasses | None:
    """Dependence of K on the sequence length: equal in all groups that declare one."""
    return next((group.lengths for group in groups if group.lengths is not None), None)


class LifecycleHooks(Protocol):
    """Callbacks of a lifecycle; `BaseScheduler` documents each method for authors."""

    def order(self, request: Request) -> Any: ...

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None: ...

    def stopped(self, request: Request) -> None: ...


class Lifecycle:
    """Owns the state of all unfinished requests and every transition between its parts.

    `requests`: unfinished requests by handle. `waiting`: those in the queue. `rows`: columns of running and loading
    requests. `blocks`: their KV blocks. `arrived`: active rows, loaded by a KV connector, not yet announced to the
    workers. `grammars`: requests outside the queue whose grammar is being compiled. `first_runs`: requests that ran for
    the first time since the result reader last sent them. `num_preemptions`: preemptions so far. `adapters`: limit on
    the adapters of rows; None if the engine serves none. `encoder`: images to encode by row; None without images.
    `whole`: indivisible parts of prompts.
    """

    def __init__(
        self, context: SchedulerContext, blocks: BlockManager, hooks: LifecycleHooks
    ) -> None:
        self.context = context
        rule = length_classes(context.kv_cache.groups)
        restart_after = rule.original if rule is not None and rule.restarts else 0
        self.rows = Rows(context.config.max_num_seqs, context.max_model_len, restart_after)
        self.blocks = blocks
        self.waiting = WaitingQueue(hooks.order)
        self.requests: dict[int, Request] = {}
        self.arrived: set[int] = set()
        self.grammars = GrammarRequests(context.config.max_num_seqs)
        self.first_runs: list[ScheduledOutput] = []
        self.num_preemptions = 0
        config = context.config
        self.adapters: AdapterLimit | None = None
        if config.max_loras:
            self.adapters = AdapterLimit(config.max_loras, config.max_num_seqs)
        self.encoder: EncoderLimit | None = None
        if config.max_images:
            self.encoder = EncoderLimit(
                config.max_encoder_tokens or config.step_token_budget,
                config.max_num_seqs,
                chunked_prefill=config.enable_chunked_prefill,
            )
        self.whole = WholePieces()
        self._hooks = hooks
        blocks.attach(self.rows)

    def add(self, request: Request) -> None:
        """Queue a new request. Propagates exceptions of its order, without a change."""
        self.waiting.add(request)
        self.requests[request.handle] = request
        if self.adapters is not None:
            self.adapters.begin(request)

    def start(self, request: Request, row: int, num_computed: int, now: float) -> None:
        """Start a request of the queue, already in `row` with its blocks."""
        self._leave_queue(request)
        self._run(request, row, num_computed, now)

    def _leave_queue(self, request: Request) -> None:
        self.waiting.discard(request)
        if self.adapters is not None:
            self.adapters.enter(request)

    def _run(self, request: Request, row: int, num_computed: int, now: float) -> None:
        if self.encoder is not None:
            self.encoder.enter(request, row, num_computed)
            self.whole.enter(request, row, num_computed)
        request.status = RequestStatus.RUNNING
        self._hooks.started(request, row, num_computed, now)
        self.rows.activate(row)

    def announce(self, request: Request, row: int, num_computed: int, now: float) -> NewRow:
        """Return the workers' data of the row, with all its blocks; reports the first run to the client."""
        self.rows.announced[row] = True
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_computed
            queued_s = now - request.arrival_time
            self.first_runs.append(ScheduledOutput(request.handle, queued_s, num_computed))
        return request.new_row(row, num_computed, self.blocks.table(row))

    def undo_start(self, request: Request, row: int) -> None:
        """Undo the start of a request with a row that cannot run in this step; it is still in the queue."""
        self.blocks.free(request, row, num_known=0)
        self.rows.leave(row)

    def wait_for_kv(self, request: Request) -> None:
        """Keep the row of a request that cannot run before `end_transfers` reports its K/V as loaded."""
        self._leave_queue(request)
        request.status = RequestStatus.WAITING_FOR_KV

    @property
    def is_closed(self) -> bool:
        """Return True if no request may start before one that waits for its adapter, or for its image."""
        if self.encoder is not None and self.encoder.is_closed:
            return True
        return self.adapters is not None and self.adapters.is_closed

    def must_wait(self, request: Request) -> bool:
        """Return True if the request cannot start yet, because of its adapter, its grammar, or an earlier request."""
        if self.encoder is not None and self.encoder.is_closed:
            return True
        if self.adapters is not None and not self.adapters.admits(request):
            return True
        return self._waits_for_grammar(request)

    def _waits_for_grammar(self, request: Request) -> bool:
        """Return True if the request's grammar is not ready; given room, it leaves the queue until `end_grammars`."""
        if self.grammars.is_ready(request):
            return False
        if self.grammars.has_room:
            self.waiting.discard(request)
            self.grammars.ask(request)
        return True

    def end_grammars(self, handles: Iterable[int]) -> None:
        """Return the requests of these grammars to the queue, at their old place."""
        for request in self.grammars.end(handles):
            self.waiting.add(request)

    def end_transfers(self, done: Iterable[int], failed: Iterable[int]) -> None:
        """Handle ended KV transfers: waiting rows start, rows with a lost load are preempted."""
        arrived, lost = self.blocks.transfers(done, failed)
        for row, num_computed in arrived:
            request = self.rows.request(row)
            now = self.context.clock()
            self.rows.num_computed[row] = num_computed
            self._run(request, row, num_computed, now)
            self.arrived.add(row)
        for row in lost:
            self.preempt(self.rows.request(row), drop=True)

    def preempt(self, request: Request, *, drop: bool = False) -> None:
        """Return a request to the queue, at its old place; blocks are freed, tokens kept. `drop`: as in `end`."""
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        self._release(request, drop=drop)
        self.waiting.add(request)

    def end(self, request: Request, reason: FinishReason, *, drop: bool = False) -> FinishedOutput:
        """Release everything held by the request; returns its terminal outcome. `drop`: its cached blocks are not
        trusted.
        """
        request.finish_reason = reason
        request.status = RequestStatus.FINISHED
        self.waiting.discard(request)
        parameters = None
        if request.row >= 0:
            parameters = self._release(request, drop=drop)
        if self.adapters is not None:
            self.adapters.end(request)
        self.blocks.forget(request)
        self.grammars.forget(request.handle)
        if self.encoder is not None:
            self.encoder.forget(request.handle)
        del self.requests[request.handle]
        return FinishedOutput(
            request.handle,
            reason,
            num_preemptions=request.num_preemptions,
            kv_transfer_params=parameters,
        )

    def _release(self, request: Request, *, drop: bool) -> dict[str, Any] | None:
        row = request.row
        rows = self.rows
        was_running = row in rows.active
        rows.save(row)  # a KV connector may read the request's tokens
        known = min(request.num_tokens, int(rows.num_computed[row]))
        parameters = self.blocks.free(request, row, num_known=known, drop=drop)
        rows.leave(row)
        if self.adapters is not None:
            self.adapters.leave(request)
        if self.encoder is not None:
            self.encoder.leave(row)
            self.whole.leave(row)
        self.arrived.discard(row)
        if was_running:
            self._hooks.stopped(request)
        return parameters
