"""Client of a request, for fair scheduling among clients: plain ASGI, inside the access control. Front end."""

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
    """Return the API key's tenant, else the remote address. A local address belongs to a proxy or this machine, shared
    by many clients: there each connection is a client. "" if unknown: then each request is a client.
    """
    tenant = scope.get(TENANT)
    if tenant:
        return f"key {tenant}"
    host, port = scope.get("client") or ("", 0)
    if not host:
        return ""
    return f"{host} {port}" if is_local(host) else str(host)
