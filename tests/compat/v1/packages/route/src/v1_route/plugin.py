"""Route `v1-route`: `/plugins/v1-route/requests`, the number of unfinished requests. API server."""

from __future__ import annotations

from typing import Any


def build(context: Any) -> Any:
    """Return the application of a `RouteContext`. The engine is there once a request arrives, not before."""
    from fastapi import APIRouter

    router = APIRouter()

    @router.get("/requests")
    async def requests() -> dict[str, int]:
        return {"unfinished": context.engine.num_unfinished_requests}

    return router
