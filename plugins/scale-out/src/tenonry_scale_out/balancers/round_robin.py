"""The load balancer `round-robin`: each engine in turn. Front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext


class RoundRobin(LoadBalancer):
    """Engines take turns, whatever their load."""

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        self._turn = -1

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        self._turn += 1
        return candidates[self._turn % len(candidates)]
