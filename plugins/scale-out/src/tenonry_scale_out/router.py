"""Asks the load balancer where a request goes, and names it when it fails. Front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tenonry.config import EngineConfig
from tenonry.errors import EngineGenerateError, PluginFault
from tenonry.info import PluginRecord
from tenonry.interfaces.load_balancer import LoadBalancer, LoadBalancerContext
from tenonry.messages import EngineCoreRequest
from tenonry.plugin.manager import PluginManager, blamed, build_plugin
from tenonry.plugin.plan import PluginPlan


class EngineChooser:
    """The load balancer of one front end, built once there is a choice. `index`: the number of the front end."""

    def __init__(self, config: EngineConfig, plan: PluginPlan, index: int = 0) -> None:
        self.config = config
        self.plan = plan
        self._seed = config.seed + index
        self._built: tuple[LoadBalancer, PluginRecord] | None = None

    def prepare(self) -> tuple[LoadBalancer, PluginRecord]:
        """Build the load balancer if there is none yet. Raises PluginError.

        The plan of a single engine does not name one: it is resolved here when engines are added.
        """
        if self._built is None:
            config = self.config
            record = self.plan.find("load_balancer")
            if record is None:
                manager = PluginManager(config.plugins)
                record = manager.resolve("load_balancer", config.load_balancer, config)
            context = LoadBalancerContext(config, seed=self._seed)
            self._built = (build_plugin(record, context), record)
        return self._built

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        """One of the candidates. Raises EngineGenerateError, with the plugin named, if the load balancer fails."""
        if len(candidates) == 1:
            return candidates[0]
        balancer, record = self.prepare()
        try:
            with blamed(record, "pick"):
                chosen = balancer.pick(request, candidates, load)
                if chosen not in candidates:
                    text = f"it answered {chosen!r}, which is none of {list(candidates)}"
                    raise ValueError(text)
        except PluginFault as fault:
            raise EngineGenerateError(str(fault), request_id=request.request_id) from fault
        return chosen
