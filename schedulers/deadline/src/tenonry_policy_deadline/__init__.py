"""The scheduling policy `deadline`: the earliest deadline first (EDF). Engine process.

On one machine with all requests present at the start, this order minimises the maximum lateness (Jackson 1955).
"""

from __future__ import annotations

import math

from pydantic import Field

from tenonry.errors import RequestError
from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request


class DeadlineOptions(PluginOptions):
    """Options of the policy `deadline`."""

    tag: str = Field(
        "deadline", min_length=1, description="Tag with the seconds from arrival to deadline."
    )
    default: float = Field(60.0, gt=0, description="Seconds for a request without the tag.")


class Deadline:
    """Orders requests by deadline; the latest one is preempted when blocks run out."""

    Options = DeadlineOptions
    starvation_free = False  # requests with an earlier deadline overtake

    def __init__(self, options: DeadlineOptions) -> None:
        self._options = options

    def order(self, request: Request) -> float:
        return request.arrival_time + _seconds(request, self._options)

    def victim(self, running: list[Request]) -> Request:
        # Of equal deadlines the youngest, last in the queue: otherwise two requests would preempt each other forever.
        return max(running, key=lambda request: (self.order(request), request.arrival))


def _seconds(request: Request, options: DeadlineOptions) -> float:
    """Read the seconds of a request's tag. Raises RequestError for a value that is no positive number."""
    value = request.tags.get(options.tag, options.default)
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise RequestError(
            f"tag {options.tag}={value!r:.64} must be a positive number of seconds, such as 2.5",
            "tags",
        )
    return seconds
