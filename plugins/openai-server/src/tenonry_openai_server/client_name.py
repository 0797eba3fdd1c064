"""The client of a request, between which helpers are fair: plain ASGI, inside the access control. Front end."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry_helper_pool.client import as_client
from tenonry_openai_server.admission import TENANT
from tenonry_openai_server.auth import is_local


class ClientName:
    """Sets the client for the work that a request causes."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with as_client(client_of(scope)):
            await self.app(scope, receive, send)


def client_of(scope: Scope) -> str:
    """The API key's tenant, else the remote address. A local address is a proxy's or this machine's, which many
    clients share: there each connection is a client. "" where nothing is known: then each request is one.
    """
    tenant = scope.get(TENANT)
    if tenant:
        return f"key {tenant}"
    host, port = scope.get("client") or ("", 0)
    if not host:
        return ""
    return f"{host} {port}" if is_local(host) else str(host)
