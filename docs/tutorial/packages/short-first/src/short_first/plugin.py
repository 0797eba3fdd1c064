"""Scheduling policy `short-first`: short prompts pass long ones, by ten seconds at most. Engine process."""

from __future__ import annotations

from tenonry.request import Request
from tenonry_scheduler_batching import SchedulingPolicy

MAX_ADVANTAGE_S = 10.0
TOKENS_PER_S = 100


class ShortFirst(SchedulingPolicy):
    """Orders the queue by arrival time, plus a second per hundred prompt tokens, bounded."""

    starvation_free = False  # short prompts may pass a long one more than max_num_seqs times

    def order(self, request: Request) -> float:
        return request.arrival_time + min(MAX_ADVANTAGE_S, request.num_prompt_tokens / TOKENS_PER_S)
