"""Scheduler `short-prompts`: short prompts start before long ones. Engine process."""

from __future__ import annotations

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request
from tenonry_kvcache import KVCacheManager
from tenonry_scheduling import BaseScheduler, StepBuilder

SHORT = 32  # tokens


class ShortPrompts(BaseScheduler):
    """First come, first served among short prompts, and then among long ones."""

    interface_version = 1
    starvation_free = False  # short prompts pass a long one as long as they arrive

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context, KVCacheManager(context))

    def order(self, request: Request) -> tuple[bool, int]:
        return request.num_prompt_tokens > SHORT, request.arrival

    def choose(self, step: StepBuilder) -> None:
        step.run_ready()  # every running request gets its next tokens
        for request in step.waiting:
            if not step.run(request) and step.full:
                break
