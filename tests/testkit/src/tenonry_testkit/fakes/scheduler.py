"""The smallest correct scheduler, for tests of other parts that need one. Engine process."""

from __future__ import annotations

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry_scheduling import BaseScheduler, StepBuilder
from tenonry_testkit.fakes.blocks import SimpleBlocks


class ReferenceScheduler(BaseScheduler):
    """First come, first served, with chunked prefill and preemption, over `SimpleBlocks`: no cache, no cleverness."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, SimpleBlocks(context))

    def choose(self, step: StepBuilder) -> None:
        step.run_ready()
        for request in step.waiting:
            if not step.run(request):
                break
