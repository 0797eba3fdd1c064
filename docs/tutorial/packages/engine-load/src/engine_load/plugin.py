"""Route `engine-load`: `/plugins/engine-load/requests`, unfinished requests for an autoscaler. API server."""

from __future__ import annotations

from typing import Any

from tenonry.config import setting
from tenonry.interfaces.plugin import PluginSettings


class EngineLoadSettings(PluginSettings):
    """Settings of the route `engine-load`."""

    busy_above: int = setting(64, ge=0)
    """Unfinished requests above which `engine-load` reports a busy server."""


def build(context: Any) -> Any:
    """Return the application of a `RouteContext`. The engine is there once a request arrives, not before."""
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/requests")
    async def requests() -> dict[str, int | bool]:
        unfinished = context.engine.num_unfinished_requests
        return {"unfinished": unfinished, "is_busy": unfinished > context.settings.busy_above}

    return router


build.Settings = EngineLoadSettings  # type: ignore[attr-defined]  # functions carry their settings so
