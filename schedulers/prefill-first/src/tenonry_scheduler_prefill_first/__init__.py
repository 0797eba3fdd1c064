"""The scheduler `prefill-first`: whole prompts before decodes, the baseline of chunked prefill. Engine process.

A step computes either prompts or decodes, as in Orca (OSDI 2022) and the first versions of vLLM. Sarathi-Serve (OSDI
2024) measures its stalls: running requests produce no token while prompts are computed.
"""

from __future__ import annotations

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler, StepBuilder


class PrefillFirstScheduler(BaseScheduler):
    """Runs prompts while any can run, first come, first served; otherwise one token of every running request.

    Prompts longer than `max_num_batched_tokens` take several steps, all others exactly one.
    """

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, KVCacheManager(context))

    def choose(self, step: StepBuilder) -> None:
        ready = step.ready
        for row in ready[step.num_uncomputed(ready) > 1].tolist():
            step.run(self.rows.request(row))
        for request in step.waiting:
            is_empty = step.tokens_left == self.token_budget
            if not is_empty and request.num_tokens > step.tokens_left:
                break
            if not step.run(request) and step.full:
                break
        if step.tokens_left == self.token_budget:
            step.run_ready()
