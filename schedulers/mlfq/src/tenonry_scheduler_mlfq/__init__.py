"""The scheduler `mlfq`: a skip-join multi-level feedback queue. Engine process.

After FastServe (Wu et al., arXiv 2305.05920, NSDI 2026). Service is counted in tokens, prompt included, which makes
decisions independent of the machine. A request joins the first level whose bound its prompt fits (skip-join), moves
down as it generates, loses its row to a waiting request of a higher level, and returns to the top after a long wait.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request, RequestStatus
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler, StepBuilder


class MlfqOptions(PluginOptions):
    """Options of the scheduler `mlfq`."""

    levels: int = Field(6, ge=1, le=16, description="Number of levels.")
    quantum: int = Field(
        128, ge=1, description="Tokens of service at the top level, prompt included."
    )
    ratio: int = Field(2, ge=2, le=16, description="Growth factor of that limit per level.")
    promote_after: float = Field(
        10.0, ge=0.001, description="Seconds in the queue after which a request returns to the top."
    )


class MlfqScheduler(BaseScheduler):
    """Orders requests by level, then by arrival. `Request.key`: (level, arrival, tokens at the last promotion)."""

    Options = MlfqOptions
    starvation_free = False  # shorter requests overtake until `promote_after`

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, KVCacheManager(context))
        options = context.options if isinstance(context.options, MlfqOptions) else MlfqOptions()
        self._bounds = [options.quantum * options.ratio**i for i in range(options.levels - 1)]
        self._promote_after = options.promote_after
        self._promoted_at = np.zeros(context.config.max_num_seqs, np.int32)  # tokens, by row
        self._queued: OrderedDict[int, float] = OrderedDict()  # handle → time, oldest first

    def order(self, request: Request) -> tuple[int, int, int]:
        return self._enter(request, 0)

    def started(self, request: Request, row: int, num_computed: int, now: float) -> None:
        del self._queued[request.handle]
        self._promoted_at[row] = request.key[2]  # type: ignore[index]  # what `order` returned

    def stopped(self, request: Request) -> None:
        if request.status is RequestStatus.PREEMPTED:
            request.key = self._enter(request, request.key[2])  # type: ignore[index]

    def victim(self, running: list[Request]) -> Request:
        return running[_last_of_lowest(self._levels(np.array([each.row for each in running])))]

    def choose(self, step: StepBuilder) -> None:
        self._promote(step.now)
        for request in step.waiting:
            if not self._start(step, request):
                break
        step.run_ready()

    def _start(self, step: StepBuilder, request: Request) -> bool:
        """Start a waiting request, displacing lower ones if necessary; False ends admission."""
        level: int = request.key[0]  # type: ignore[index]
        while True:
            ready = step.ready
            levels = self._levels(ready)
            # Ready rows of this level and above keep all their tokens, others one; each reserves one block.
            kept = np.where(levels <= level, step.num_uncomputed(ready), 1).sum()
            tokens = step.tokens_left - int(kept)
            slots = (step.free_blocks - len(ready)) * self.context.kv_cache.block_size
            has_room = request.num_tokens <= slots or not step.num_running
            if tokens < (1 if self.chunked_prefill or not len(ready) else request.num_tokens):
                return False
            if has_room and step.run(request, tokens if self.chunked_prefill else None):
                return not step.full
            if has_room and not step.full:
                return True  # its adapter, grammar or K/V is not ready: later ones may start
            if not len(ready) or levels.max() <= level:
                return False
            step.preempt(self.rows.request(int(ready[_last_of_lowest(levels)])))

    def _enter(self, request: Request, promoted_at: int) -> tuple[int, int, int]:
        self._queued[request.handle] = self.context.clock()
        level = np.searchsorted(self._bounds, request.num_tokens - promoted_at)
        return (int(level), request.arrival, promoted_at)

    def _levels(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        # Without pending tokens: a preemption drops them, and the row would be preempted repeatedly.
        known = self.rows.num_tokens[rows] - self.rows.pending[rows]
        return np.searchsorted(self._bounds, known - self._promoted_at[rows])

    def _promote(self, now: float) -> None:
        while self._queued and next(iter(self._queued.values())) + self._promote_after <= now:
            handle, _ = self._queued.popitem(last=False)
            if handle in self.requests:  # otherwise it ended in the queue
                request = self.requests[handle]
                self._queued[handle] = now
                if request in self.waiting:  # otherwise its K/V or its grammar is pending
                    self.waiting.discard(request)
                    request.key = (0, request.arrival, request.num_tokens)
                    self.waiting.add(request)


def _last_of_lowest(levels: NDArray[np.intp]) -> int:
    """Index of the row that started last among those of the lowest level."""
    return int(np.flatnonzero(levels == levels.max())[-1])
