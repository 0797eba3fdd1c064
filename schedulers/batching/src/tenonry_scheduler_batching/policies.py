"""Built-in policies of the batching scheduler: `fcfs` and `priority`. Engine process."""

from __future__ import annotations

from tenonry.request import Request
from tenonry_scheduler_batching.policy import SchedulingPolicy


class FcfsPolicy(SchedulingPolicy):
    """First come, first served; the youngest is preempted."""


class PriorityPolicy(SchedulingPolicy):
    """Lower `priority` first, then earlier arrival; the youngest request of the worst priority is preempted."""

    starvation_free = False

    def order(self, request: Request) -> tuple[int, float, int]:
        return (request.priority, request.arrival_time, request.arrival)

    def victim(self, running: list[Request]) -> Request:
        return max(running, key=self.order)
