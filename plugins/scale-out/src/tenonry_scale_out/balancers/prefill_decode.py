"""The load balancer `prefill-decode`: the first engines compute prompts for the others, which decode. Front end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic import BaseModel, Field

from tenonry.config import EngineConfig, PluginChoice
from tenonry.interfaces.plugin import PluginOptions
from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.load_balancer import (
    LoadBalancer,
    LoadBalancerContext,
    build_load_balancer,
    check_load_balancer,
)

WANTS_OFFER = "do_remote_decode"  # in kv_transfer_params: another engine will decode


class PrefillDecodeOptions(PluginOptions):
    """Options of the load balancer `prefill-decode`."""

    prefill_engines: int = Field(
        1, ge=1, description="Engines that compute prompts: those with the lowest indexes."
    )
    balancer: str = Field(
        "least-loaded", min_length=1, description="Load balancer among engines with the same role."
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of that load balancer."
    )

    @property
    def choice(self) -> PluginChoice:
        return PluginChoice(name=self.balancer, options=self.options)


class PrefillDecode(LoadBalancer):
    """Prompts that another engine will decode go to the first engines, all else to the others, and where one sort has
    died, to the other.
    """

    Options = PrefillDecodeOptions

    @classmethod
    def check(cls, config: EngineConfig, options: BaseModel) -> None:
        check_load_balancer(cast("PrefillDecodeOptions", options).choice, config)

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        options = context.options
        if not isinstance(options, PrefillDecodeOptions):
            options = PrefillDecodeOptions()
        self._first = options.prefill_engines
        self._balancer, _ = build_load_balancer(options.choice, context.config, context.seed)

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        wants_prefill = WANTS_OFFER in (request.kv_transfer_params or ())
        able = [index for index in candidates if (index < self._first) == wants_prefill]
        return self._balancer.pick(request, able or candidates, load)
