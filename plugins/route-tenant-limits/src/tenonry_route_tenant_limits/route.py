"""The route `tenant-limits`: no paths, only an admission for the requests of all routes. Front end."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from tenonry.errors import ConfigError
from tenonry_route_tenant_limits.limits import TenantLimits
from tenonry_route_tenant_limits.settings import TenantSettings


def build(_: Any) -> APIRouter:
    """No routes."""
    return APIRouter()


def admission(context: Any) -> TenantLimits | None:
    """The limits, or None where there are none; `context` is the server's AdmissionContext. Raises ConfigError."""
    limits = TenantLimits(context.settings)
    if not limits.has_limits:
        return None
    if context.api_server_count > 1:
        raise ConfigError(
            f"limits per tenant: each of api_server_count={context.api_server_count} API servers would count alone; "
            "give api_server_count=1"
        )
    return limits


build.Settings = TenantSettings  # type: ignore[attr-defined]
build.at_root = True  # type: ignore[attr-defined]
build.admission = admission  # type: ignore[attr-defined]
