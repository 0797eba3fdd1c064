"""The router of one front end: the load balancer chooses, by the loads of all engines. Front end, event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError, PluginFault
from tenonry.interfaces.coordination import RequestRouter
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import blamed
from tenonry.transport.keys import CurveKeys
from tenonry.transport.sockets import Context
from tenonry_scale_out.load_balancer import build_load_balancer
from tenonry_scale_out.load_table import PublishedLoads
from tenonry_scale_out.wave_messages import Endpoints


class BalancedRouter(RequestRouter):
    """The load balancer of front end `index`, and the loads that the coordinator publishes, if there is one.

    Raises PluginError for a load balancer that cannot be built.
    """

    def __init__(
        self,
        config: EngineConfig,
        context: Context,
        curve: CurveKeys | None,
        index: int,
        num_front_ends: int,
    ) -> None:
        self._context = context
        self._curve = curve
        self._num_front_ends = num_front_ends
        self._balancer, self._record = build_load_balancer(
            config.load_balancer, config, config.seed + index
        )
        self._loads: PublishedLoads | None = None
        self._endpoints = ""

    def connect(self, endpoints: str) -> None:
        if endpoints == self._endpoints:
            return
        self.close()
        self._endpoints = endpoints
        self._loads = PublishedLoads(
            self._context, self._curve, msgspec.json.decode(endpoints, type=Endpoints)
        )
        self.tag = 0

    def pick(
        self,
        request: EngineCoreRequest,
        candidates: Sequence[int],
        num_requests: Callable[[int], int],
    ) -> int:
        if self._loads is not None:
            self._loads.refresh()
            self.tag = self._loads.wave
        if len(candidates) == 1:
            return candidates[0]

        def load(index: int) -> int:
            """The published number, or this front end's own times the number of front ends."""
            own = num_requests(index) * self._num_front_ends
            return own if self._loads is None else max(own, self._loads.loads.get(index, 0))

        try:
            with blamed(self._record, "pick"):
                chosen = self._balancer.pick(request, candidates, load)
                if chosen not in candidates:
                    text = f"it answered {chosen!r}, which is none of {list(candidates)}"
                    raise ValueError(text)
        except PluginFault as fault:
            raise EngineGenerateError(str(fault), request_id=request.request_id) from fault
        return chosen

    def sent(self, index: int) -> None:
        if self._loads is not None:
            self._loads.wake(index)

    def close(self) -> None:
        if self._loads is not None:
            self._loads.close()
