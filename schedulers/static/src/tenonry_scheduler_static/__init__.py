"""The scheduler `static`: first come, first served, in batches that run to their end. Engine process.

The smallest correct scheduler, and the model for new ones: `BaseScheduler` owns requests, columns, stop conditions and
statistics, `KVCacheManager` the blocks; only the choice remains.
"""

from __future__ import annotations

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler, StepBuilder


class StaticScheduler(BaseScheduler):
    """Fills a batch from the queue, runs it until its last request has ended, then fills the next one."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, KVCacheManager(context))

    def choose(self, step: StepBuilder) -> None:
        step.run_ready()
        if step.num_running:
            return
        for request in step.waiting:
            step.run(request)
            if step.full:
                break
