"""The base class of schedulers: columns, stop conditions, generations, aborts and statistics. Engine process.

class ShortestFirst(BaseScheduler):
    def __init__(self, context):
        super().__init__(context, KVCacheManager(context))

    def order(self, request):
        return request.num_tokens

    def choose(self, step):
        step.run_ready()
        for request in step.waiting:
            if not step.run(request):
                break
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from tenonry.errors import RequestError
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.messages import EngineCoreOutputs, FinishedOutput, ScheduledOutput
from tenonry.outputs import FinishReason
from tenonry.request import Request, RequestStatus
from tenonry.stats import SchedulerStats
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling.blocks import BlockManager
from tenonry_scheduling.results import ResultReader
from tenonry_scheduling.rows import Rows
from tenonry_scheduling.step_builder import StepBuilder
from tenonry_scheduling.waiting import WaitingQueue


class BaseScheduler(Scheduler):
    """A scheduler that is right but for the choice: write `choose`, and `order` or `victim` where they matter.

    `rows`: the columns; `waiting`: the queue; `blocks`: who hands out KV blocks; `requests`: unfinished ones by handle.
    """

    def __init__(self, context: SchedulerContext, blocks: BlockManager) -> None:
        super().__init__(context)
        self.token_budget = context.config.step_token_budget
        self.chunked_prefill = context.config.enable_chunked_prefill
        self.rows = Rows(context.config.max_num_seqs, context.max_model_len)
        self.blocks = blocks
        blocks.attach(self.rows)
        self.waiting = WaitingQueue(self.order)
        self.requests: dict[int, Request] = {}
        self.stats_extra: dict[str, float] = {}
        self._results = ResultReader(self)
        self.arrived: set[int] = set()  # rows whose KV came, and that the workers do not know yet
        self._stats = SchedulerStats()  # what is counted since the last call of make_stats

    # ------------------------------------------------------------------ for authors
    @abstractmethod
    def choose(self, step: StepBuilder) -> None:
        """Decide this step by calling `step.run…`."""

    def order(self, request: Request) -> Any:
        """Place in the waiting queue: smallest first, computed once. By default first come, first served."""
        return request.arrival

    def victim(self, running: list[Request]) -> Request:
        """Whom to preempt when blocks run out; `running` holds at least two, in the order they entered."""
        return running[-1]

    # ------------------------------------------------------------------ the interface
    def add_request(self, request: Request) -> None:
        self._refuse_impossible(request)
        self.waiting.add(request)  # first: a policy's order may refuse it too
        self.requests[request.handle] = request

    def schedule(self) -> SchedulerOutput:
        step = StepBuilder(self)
        self.choose(step)
        self.rows.step += 1
        self._stats.num_steps += 1
        return step.build()

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self.blocks.waits or result.transfers_done or result.transfers_failed:
            self._end_transfers(result)
        return self._results.read(output, result)

    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        ended = []
        for handle in list(self.requests) if handles is None else handles:
            request = self.requests.get(handle)
            if request is not None:
                self.end(request, reason)
                ended.append(request)
        return ended

    def has_requests(self) -> bool:
        return bool(self.requests or self.rows.gone or self.blocks.waits)

    def has_unfinished_requests(self) -> bool:
        return bool(self.requests)

    def get_request_counts(self) -> tuple[int, int]:
        running = len(self.rows.active)
        return running, len(self.requests) - running

    def make_stats(self) -> SchedulerStats:
        stats, self._stats = self._stats, SchedulerStats()
        stats.num_running, stats.num_waiting = self.get_request_counts()
        stats.kv_cache_usage = 1.0 - self.blocks.num_free / self.blocks.num_total
        stats.prefix_cache_queries, stats.prefix_cache_hits = self.blocks.take_counts()
        stats.extra = dict(self.stats_extra)
        return stats

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        if reset_running_requests:
            for row in self.rows.running().tolist():
                self.preempt(self.rows.request(row))
        return self.blocks.reset()

    # ------------------------------------------------------------------ what the step builder and the reader call
    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        """The request runs from now on; the first time its client is told."""
        self.waiting.discard(request)
        self.rows.activate(row)
        request.status = RequestStatus.RUNNING
        if request.num_cached_tokens < 0:
            request.num_cached_tokens = num_computed
            event = ScheduledOutput(request.handle, now - request.arrival_time, num_computed)
            self._results.scheduled.append(event)

    def undo_start(self, request: Request, row: int) -> None:
        """The request got a row but could not run after all; it is still in the queue."""
        self.blocks.free(request, row, num_known=0)
        self.rows.leave(row)

    def preempt(self, request: Request, *, drop: bool = False) -> None:
        """Back to the queue, in its old place; blocks are freed, tokens kept. `drop`: as in `end`."""
        self._release(request, drop=drop)
        request.status = RequestStatus.PREEMPTED
        request.num_preemptions += 1
        self._stats.num_preemptions += 1
        self.waiting.add(request)

    def end(self, request: Request, reason: FinishReason, *, drop: bool = False) -> FinishedOutput:
        """Terminal outcome: everything the request held is given back. `drop`: its cached blocks are not trusted."""
        request.finish_reason = reason
        request.status = RequestStatus.FINISHED
        self.waiting.discard(request)
        parameters = self._release(request, drop=drop) if request.row >= 0 else None
        self.blocks.forget(request)
        del self.requests[request.handle]
        return FinishedOutput(
            request.handle,
            reason,
            num_preemptions=request.num_preemptions,
            kv_transfer_params=parameters,
        )

    def _release(self, request: Request, *, drop: bool = False) -> dict[str, Any] | None:
        row, rows = request.row, self.rows
        rows.save(row)  # a KV connector may read the request's tokens
        known = min(request.num_tokens, int(rows.num_computed[row]))
        parameters = self.blocks.free(request, row, num_known=known, drop=drop)
        rows.leave(row)
        self.arrived.discard(row)
        return parameters

    def _end_transfers(self, result: ModelRunnerOutput) -> None:
        """KV that waited for a transfer is there (or has to be computed): the rows may run."""
        arrived, lost = self.blocks.transfers(result.transfers_done, result.transfers_failed)
        for row, num_computed in arrived:
            self.rows.num_computed[row] = num_computed
            self.rows.request(row).status = RequestStatus.RUNNING
            self.rows.activate(row)
            self.arrived.add(row)
        for row in lost:
            self.preempt(self.rows.request(row), drop=True)

    def _refuse_impossible(self, request: Request) -> None:
        """Raises RequestError for what can never run here, however empty the engine is."""
        if request.num_tokens >= request.max_total_tokens:
            raise RequestError(
                f"the request has {request.num_tokens} tokens and may have {request.max_total_tokens} in all: nothing "
                "is left to generate",
                "prompt",
            )
        if request.num_tokens > self.token_budget and not self.chunked_prefill:
            raise RequestError(
                f"the prompt has {request.num_tokens} tokens, but chunked prefill is off and a step holds at most "
                f"max_num_batched_tokens={self.token_budget}",
                "prompt",
            )
        slots = self.blocks.num_total * self.context.kv_cache.block_size
        if request.max_total_tokens - 1 > slots:  # the last token is sampled, never computed
            raise RequestError(
                f"the request may grow to {request.max_total_tokens} tokens, but the KV cache holds {slots}; lower "
                "max_tokens or shorten the prompt",
                "max_tokens",
            )
