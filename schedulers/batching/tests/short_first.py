"""The policy of the tutorial `write-a-scheduler-policy`."""

from __future__ import annotations

from tenonry_scheduler_batching.policy import SchedulingPolicy


class ShortFirst(SchedulingPolicy):
    """Short prompts pass long ones, but by ten seconds at most."""

    starvation_free = False

    def order(self, request):
        return request.arrival_time + min(10.0, request.num_prompt_tokens / 100)
