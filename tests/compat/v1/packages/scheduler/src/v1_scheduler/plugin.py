"""Scheduler `v1-scheduler`: first come, first served, and few requests at once. Engine process."""

from __future__ import annotations

from pydantic import Field
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler, StepBuilder


class V1SchedulerOptions(PluginOptions):
    """Options of `--scheduler-option`."""

    most: int = Field(default=8, ge=1, description="Maximum requests that run concurrently.")


class V1Scheduler(BaseScheduler):
    """First come, first served, with a bound on running requests."""

    interface_version = 1
    Options = V1SchedulerOptions

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, KVCacheManager(context))
        options = context.options
        self.options = options if isinstance(options, V1SchedulerOptions) else V1SchedulerOptions()

    def choose(self, step: StepBuilder) -> None:
        step.run_ready()  # every running request gets its next tokens
        for request in step.waiting:
            if step.num_running >= self.options.most:
                break
            if not step.run(request) and step.full:
                break
