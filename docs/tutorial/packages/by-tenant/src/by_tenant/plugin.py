"""Load balancer `by-tenant`: the engine of the tenant, unless it is much busier than another. Front end."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry.messages import EngineCoreRequest
from tenonry_scale_out.load_balancer import LoadBalancer, LoadBalancerContext


class ByTenantOptions(PluginOptions):
    """Options of `--load-balancer-option`."""

    slack: int = Field(
        default=8, ge=0, description="Requests by which a tenant's engine may be busier."
    )


class ByTenant(LoadBalancer):
    """Keeps each tenant, as `cache_salt` names it, on one engine, up to a difference in load."""

    interface_version = 1
    Options = ByTenantOptions

    def __init__(self, context: LoadBalancerContext) -> None:
        super().__init__(context)
        options = context.options
        self.options = options if isinstance(options, ByTenantOptions) else ByTenantOptions()

    def pick(
        self, request: EngineCoreRequest, candidates: Sequence[int], load: Callable[[int], int]
    ) -> int:
        tenant = request.cache_salt or request.request_id
        home = candidates[zlib.crc32(tenant.encode()) % len(candidates)]
        least = min(candidates, key=load)
        return home if load(home) <= load(least) + self.options.slack else least
