"""The scheduling policy `shortest-first`: short requests overtake long ones, by a bounded time. Engine process."""

from __future__ import annotations

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request


class ShortestFirstOptions(PluginOptions):
    """Options of the policy `shortest-first`."""

    tokens_per_second: float = Field(
        100.0, gt=0, description="Prompt and output tokens that delay a request by one second."
    )
    max_delay: float = Field(
        10.0, ge=0, description="Maximum seconds by which a later request passes an earlier one."
    )


class ShortestFirst:
    """Orders requests by arrival time plus a delay that grows with their maximum tokens.

    The delay is bounded (ageing): a request that arrives `max_delay` seconds or more after another never passes it.
    """

    Options = ShortestFirstOptions
    starvation_free = False  # requests that arrive within `max_delay` overtake

    def __init__(self, options: ShortestFirstOptions) -> None:
        self._options = options

    def order(self, request: Request) -> float:
        delay = request.max_total_tokens / self._options.tokens_per_second
        return request.arrival_time + min(delay, self._options.max_delay)
