"""Request checks: pure functions of the entry-point group `tenonry.request_checks`. Front end, and engine process.

    def check_tenant(request: EngineCoreRequest, limits: RequestLimits) -> None:
        if not request.cache_salt:
            raise RequestError("cache_salt is missing; this cluster requires one", "cache_salt")

Every installed check runs for each request: in the front end, to reject early, and again in the engine, where no client
can bypass it. A check raises RequestError to reject a request, changes nothing, and takes microseconds; its module
imports no heavy library. Any other exception fails the one request and names the check.

A check with settings has an attribute `Settings`, a PluginSettings, which it reads as every plugin does:

    def check_tenant(request, limits):
        if request.tags.get("tenant") in limits.config.section(TenantSettings).blocked_tenants: ...

    check_tenant.Settings = TenantSettings

The OpenAI server sets the tag `tenant` from the API key, and puts it before a client's own `cache_salt`: "acme:salt".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from tenonry.config import EngineConfig
from tenonry.messages import EngineCoreRequest


class RequestLimits(msgspec.Struct, frozen=True):
    """Bounds learnt at start: longest sequence in tokens, and size of the vocabulary (0: unknown, ids are 31-bit).

    In the engine also its worker's name and capabilities; None in a front end. `tasks` as in EngineInfo. `checks`: the
    installed request checks.
    """

    max_model_len: int
    vocab_size: int
    config: EngineConfig
    worker: str = ""
    capabilities: frozenset[str] | None = None
    tasks: Mapping[str, int] = {}
    checks: tuple[RequestCheck, ...] = ()


RequestCheck = Callable[[EngineCoreRequest, RequestLimits], None]
