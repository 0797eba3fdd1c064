"""GET /plugins/decisions/records: the records that engines keep in memory, for operators. Front end, event loop."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tenonry.errors import TenonryError

MEDIA_TYPE = "application/x-msgpack"


def build(context: Any) -> Starlette:
    """The route's application; `context` is the server's RouteContext."""

    async def decisions(_: Request) -> Response:
        """Frames of all engines, one after another."""
        try:
            parts = await context.engine.calls["decisions"].records()
        except TenonryError as error:
            return Response(f"{error}\n", 409, media_type="text/plain")
        return Response(b"".join(parts), media_type=MEDIA_TYPE)

    return Starlette(routes=[Route("/records", decisions, methods=["GET"])])
