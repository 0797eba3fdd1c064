"""The load balancer `least-loaded`: the less loaded of two random engines. Front end.

Two random choices come within a constant of the best balance without looking at every engine (Mitzenmacher, "The power
of two choices in randomized load balancing", 2001), and two front ends that see the same numbers do not choose the same
engine.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext


class LeastLoaded(LoadBalancer):
    """The less loaded of two engines that are drawn at random."""

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        self._random = random.Random(context.seed)  # noqa: S311 - no secrets

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        drawn = self._random.sample(candidates, min(2, len(candidates)))
        return min(drawn, key=load)
