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
from typing import TYPE_CHECKING, Any

from tenonry.errors import RequestError
from tenonry.interfaces.scheduler import Scheduler, SchedulerContext
from tenonry.kv_cache import longest_sequence
from tenonry.messages import EngineCoreOutputs
from tenonry.outputs import FinishReason
from tenonry.request import Request
from tenonry.stats import SchedulerStats
from tenonry.step import ModelRunnerOutput, SchedulerOutput
from tenonry_scheduling.blocks import BlockManager
from tenonry_scheduling.budget import StepBudget
from tenonry_scheduling.lifecycle import Lifecycle
from tenonry_scheduling.results import ResultReader
from tenonry_scheduling.rounds import Rounds
from tenonry_scheduling.step_builder import StepBuilder
from tenonry_scheduling.whole import check_pieces


class BaseScheduler(Scheduler):
    """A complete scheduler except for the choice: implement `choose`, and `order`, `victim`, `started` or `stopped` as
    needed.

    `rows`: the columns. `waiting`: the queue. `blocks`: the manager of KV blocks. `requests`: unfinished requests by
    handle. All four belong to `lifecycle`, which moves requests between them. `token_budget`: tokens of one step.
    `chunked_prefill`: prompts may be split over steps. `stats_extra`: additional numbers for `make_stats`. `held`:
    requests delayed by `choose` in the latest step, by handle, with the responsible plugin; shown in decision records.
    """

    def __init__(self, context: SchedulerContext, blocks: BlockManager) -> None:
        super().__init__(context)
        self.token_budget = context.config.step_token_budget
        self.chunked_prefill = context.config.enable_chunked_prefill
        self.lifecycle = Lifecycle(context, blocks, self)
        self.rows = self.lifecycle.rows
        self.waiting = self.lifecycle.waiting
        self.blocks = blocks
        self.requests = self.lifecycle.requests
        self.stats_extra: dict[str, float] = {}
        self.held: dict[int, str] = {}
        self._longest_sequence = longest_sequence(
            context.kv_cache.groups,
            blocks.num_total,
            context.kv_cache.block_size,
            self.token_budget,
            context.max_model_len,
        )
        self._results = ResultReader(self.lifecycle)
        self._rounds: Rounds | None = None
        if context.max_round_tokens > 1:
            self._rounds = Rounds(self.lifecycle)
        self._num_steps = 0  # since the last call of make_stats
        self._reported_preemptions = 0

    if not TYPE_CHECKING:  # which would accept any name

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, which names a missing call of the constructor above."""
            remedy = "; call super().__init__(context, blocks) first in its constructor"
            text = f"'{type(self).__name__}' object has no attribute '{name}'"
            raise AttributeError(text + remedy * ("lifecycle" not in vars(self)))

    # ------------------------------------------------------------------ for authors
    @abstractmethod
    def choose(self, step: StepBuilder) -> None:
        """Decide this step by calling `step.run…`."""

    def order(self, request: Request) -> Any:
        """Sort key in the waiting queue: smallest first, computed once. By default first come, first served."""
        return request.arrival

    def victim(self, running: list[Request]) -> Request:
        """Return the request to preempt when blocks run out; `running` holds at least two, in start order. By default
        the last one.
        """
        return running[-1]

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        """Called when a request starts to run, before it is in `step.running`. Does nothing by default.

        `num_computed` of its tokens have K/V already. Called again after each preemption.
        """

    def stopped(self, request: Request) -> None:
        """Called when a request that had started has left its row. Does nothing by default.

        `request.status` is PREEMPTED or FINISHED. Not called for a request that ends in the queue.
        """

    def preempt(self, request: Request) -> None:
        """Remove a running request's row and blocks between two steps; `StepBuilder.preempt` does so within one."""
        self.lifecycle.preempt(request)

    # ------------------------------------------------------------------ the interface
    def add_request(self, request: Request) -> None:
        self._refuse_impossible(request)
        self.lifecycle.add(request)

    def schedule(self) -> SchedulerOutput:
        budget = StepBudget(self.token_budget, chunked_prefill=self.chunked_prefill)
        if self.lifecycle.adapters is not None:
            self.lifecycle.adapters.begin_step()
        if self.lifecycle.encoder is not None:
            self.lifecycle.encoder.begin_step()
        if self.held:
            self.held = {}
        step = StepBuilder(self.lifecycle, self.victim, budget, self._rounds)
        self.choose(step)
        self.rows.step += 1
        self._num_steps += 1
        return step.build()

    def update_from_output(
        self, output: SchedulerOutput, result: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if self.blocks.waits or result.transfers_done or result.transfers_failed:
            self.lifecycle.end_transfers(result.transfers_done, result.transfers_failed)
        if result.prepared:
            self.lifecycle.end_grammars(result.prepared)
        if self._rounds is not None:
            self._rounds.answered(result)
        return self._results.read(output, result)

    def finish_requests(self, handles: Iterable[int] | None, reason: FinishReason) -> list[Request]:
        finished = []
        for handle in list(self.requests) if handles is None else handles:
            request = self.requests.get(handle)
            if request is not None:
                self.lifecycle.end(request, reason)
                finished.append(request)
        return finished

    def has_requests(self) -> bool:
        return bool(self.requests or self.rows.gone or self.blocks.waits)

    def get_request_counts(self) -> tuple[int, int]:
        running = len(self.rows.active)
        return running, len(self.requests) - running

    def make_stats(self) -> SchedulerStats:
        running, waiting = self.get_request_counts()
        queries, hits = self.blocks.take_counts()
        external_queries, external_hits = self.blocks.take_external_counts()
        preemptions = self.lifecycle.num_preemptions
        usage = 1.0 - self.blocks.num_free / self.blocks.num_total
        extra = self.blocks.numbers()
        extra.update(self.stats_extra)
        if self.lifecycle.adapters is not None:
            extra.update(self.lifecycle.adapters.numbers())
        stats = SchedulerStats(
            num_running=running,
            num_waiting=waiting,
            kv_cache_usage=usage,
            prefix_cache_queries=queries,
            prefix_cache_hits=hits,
            num_preemptions=preemptions - self._reported_preemptions,
            num_steps=self._num_steps,
            extra=extra,
            external_prefix_cache_queries=external_queries,
            external_prefix_cache_hits=external_hits,
        )
        if self._rounds is not None:
            drafts, tokens, accepted = self._rounds.take_draft_counts()
            stats.num_drafts = drafts
            stats.num_draft_tokens = tokens
            stats.num_accepted_tokens = accepted
        self._reported_preemptions = preemptions
        self._num_steps = 0
        return stats

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        if reset_running_requests:
            for row in self.rows.running().tolist():
                self.lifecycle.preempt(self.rows.request(row))
        return self.blocks.reset()

    def _refuse_impossible(self, request: Request) -> None:
        """Raise RequestError for a request that cannot run even in an empty engine."""
        if request.num_tokens >= request.max_total_tokens:
            raise RequestError(
                f"the request has {request.num_tokens} tokens and may have {request.max_total_tokens} in all: nothing "
                "is left to generate; shorten the prompt or raise max_tokens",
                "prompt",
            )
        if request.num_tokens > self.token_budget and not self.chunked_prefill:
            raise RequestError(
                f"the prompt has {request.num_tokens} tokens, but chunked prefill is off and a step holds at most "
                f"max_num_batched_tokens={self.token_budget}; shorten the prompt",
                "prompt",
            )
        if self.lifecycle.encoder is not None:
            others = self.context.config.max_num_seqs - 1  # each of which may decode
            check_pieces(request, self.token_budget - others)
        computed = request.max_total_tokens - 1  # the last token is sampled, never computed
        if computed > self._longest_sequence:
            raise RequestError(
                f"the request may grow to {request.max_total_tokens} tokens, but the KV cache holds "
                f"{self._longest_sequence}; lower max_tokens or shorten the prompt",
                "max_tokens",
            )
