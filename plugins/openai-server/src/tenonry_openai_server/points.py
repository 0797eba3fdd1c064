"""The point that the server opens: routes of third parties under /plugins/<name>. Any process; imports no server."""

from __future__ import annotations

from tenonry.plugin import Point

# A name stands for a function of a RouteContext, that returns an ASGI application.
ROUTES = Point("tenonry.routes")
