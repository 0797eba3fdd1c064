"""A load balancer without its own distribution: round robin. Front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext


class TurnsBalancer(LoadBalancer):
    """Picks the least recently picked of the least loaded engines."""

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        self._num_picks = 0
        self._last_pick: dict[int, int] = {}

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        chosen = min(candidates, key=lambda index: (load(index), self._last_pick.get(index, 0)))
        self._num_picks += 1
        self._last_pick[chosen] = self._num_picks
        return chosen
