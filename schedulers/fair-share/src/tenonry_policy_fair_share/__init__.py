"""The scheduling policy `fair-share`: waiting clients receive equal shares of tokens. Engine process.

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996). A request's start tag is the later of virtual time and
the finish tag of its client's last request; its finish tag is its start tag plus its cost. Virtual time is the start
tag of the request that started last. For two permanently waiting clients, the admitted costs differ by at most one
request of each.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.request import Request


class FairShareOptions(PluginOptions):
    """Options of the policy `fair-share`."""

    tag: str = Field(
        "tenant", min_length=1, description="Tag that identifies the client of a request."
    )


class FairShare:
    """Orders requests by start tag; the cost is the maximum number of prompt and output tokens."""

    Options = FairShareOptions
    starvation_free = False  # requests of clients with less service overtake

    def __init__(self, options: FairShareOptions) -> None:
        self._tag = options.tag
        self._now = 0
        self._finish: dict[Any, int] = {}

    def order(self, request: Request) -> int:
        client = request.tags.get(self._tag)
        start = max(self._now, self._finish.get(client, 0))
        self._finish[client] = start + request.max_total_tokens
        return start

    def admit(self, request: Request, state: object) -> bool:
        if request.key > self._now:  # type: ignore[operator]  # what `order` returned
            self._now = request.key  # type: ignore[assignment]
            self._finish = {each: tag for each, tag in self._finish.items() if tag > self._now}
        return True
