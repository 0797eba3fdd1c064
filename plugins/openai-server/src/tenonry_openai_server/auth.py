"""Access control: plain ASGI, deny by default, for every route, including those of plugins. Front end.

Decisions use `scope["path"]`, never an URL assembled from headers. Without API keys, a server on a local address only
accepts local host names: otherwise any web page could reach it by DNS rebinding to 127.0.0.1.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from tenonry_openai_server.admission import TENANT
from tenonry_openai_server.errors import APIError, send_error
from tenonry_openai_server.guard import header
from tenonry_openai_server.settings import ServerConfig

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
OPEN_PATHS = frozenset({"/health", "/ping", "/ready", "/version"})


class KeyCheck:
    """Admits a request that carries one of the keys, and notes the tenant: a prefix of the key's hash."""

    def __init__(
        self, app: ASGIApp, settings: ServerConfig, open_files: Collection[str] = ()
    ) -> None:
        """Set up access control; `open_files`: paths that GET reads without a key."""
        self.app = app
        self.root_path = settings.root_path
        self.open_files = frozenset(open_files)
        self.digests = [hashlib.sha256(key.encode()).digest() for key in settings.api_key]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(self.root_path)
        is_file = scope["method"] == "GET" and path in self.open_files
        if not is_file and path not in OPEN_PATHS:
            tenant = self._tenant(scope)
            if tenant is None:
                await send_error(send, self._refusal(scope))
                return
            scope[TENANT] = tenant
        await self.app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str | None:
        scheme, _, key = (header(scope, b"authorization") or b"").partition(b" ")
        if not scheme:  # as clients of Anthropic's API send it
            scheme, key = b"bearer", header(scope, b"x-api-key") or b""
        given = hashlib.sha256(key.strip()).digest()
        matches = [
            hmac.compare_digest(given, digest) for digest in self.digests
        ]  # all of them, whichever matches
        return given.hex()[:16] if any(matches) and scheme.lower() == b"bearer" else None

    @staticmethod
    def _refusal(scope: Scope) -> APIError:
        given = any(header(scope, name) is not None for name in (b"authorization", b"x-api-key"))
        message = (
            "the API key is wrong"
            if given
            else "an API key is needed: send 'Authorization: Bearer KEY'"
        )
        return APIError(
            401, message, code="invalid_api_key", headers={"www-authenticate": "Bearer"}
        )


class HostCheck:
    """Answers only to host names that mean this machine, or that the operator listed."""

    def __init__(self, app: ASGIApp, settings: ServerConfig) -> None:
        self.app = app
        self.allowed = {name.lower() for name in settings.allowed_hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = _host_name((header(scope, b"host") or b"").decode("latin-1"))
        if host and host not in self.allowed and not is_local(host):
            message = f"this server answers to local host names only, not to '{host}'; allow it with --allowed-hosts"
            await send_error(send, APIError(403, message, code="host_not_allowed"))
            return
        await self.app(scope, receive, send)


class OriginCheck:
    """Rejects state-changing requests of other sites' web pages, if no key protects the server.

    A page may send such a request without a preflight: a POST without a body, say. Browsers send the page's origin;
    other programs, and pages of this server, send none or its own. Desktop applications have their own schemes.
    """

    def __init__(self, app: ASGIApp, settings: ServerConfig) -> None:
        self.app = app
        self.allowed = {origin.lower().rstrip("/") for origin in settings.allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = (header(scope, b"origin") or b"").decode("latin-1").strip().lower()
        if scope["method"] not in SAFE_METHODS and self._is_foreign(origin, scope):
            message = f"web pages of '{origin[:256]}' may not call this server; allow them with --allowed-origins"
            await send_error(send, APIError(403, message, code="origin_not_allowed"))
            return
        await self.app(scope, receive, send)

    def _is_foreign(self, origin: str, scope: Scope) -> bool:
        if not origin or origin in self.allowed or "*" in self.allowed:
            return False
        if origin == "null":
            return True
        scheme, _, host = origin.partition("://")
        own = (header(scope, b"host") or b"").decode("latin-1").strip().lower()
        return scheme in {"http", "https"} and host != own


def _host_name(text: str) -> str:
    """The name in a Host header, without port and brackets."""
    text = text.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


def is_local(host: str) -> bool:
    """Return True if a host name or address denotes this machine and no other."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
