"""Sources of image bytes: data URLs, and https addresses of hosts that the operator allows. Front end; helper threads.

A request must not make the server read resources that only the server can reach. So a host must be on the list, each of
its addresses must be public, the connection uses the address that was checked, and redirects are not followed.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import ipaddress
import re
import socket
import ssl
import string
import time
from collections.abc import Callable, Collection
from urllib.parse import unquote_to_bytes, urlsplit

from tenonry.errors import RequestError
from tenonry_helper_pool.threads import lent_slot

HTTPS_PORT = 443
CHUNK_BYTES = 1 << 16
MAX_URL_CHARS = 4096
FETCH_SECONDS = 10.0
_SPACE = string.whitespace.encode()
_BASE64 = re.compile(r";\s*base64\s*$", re.IGNORECASE)


def is_public(address: str) -> bool:
    """Return True for an IP address of the public internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_global and not found.is_multicast


class ImageSources:
    """Reads images by their URL. `hosts`: names that https addresses may have; none: data URLs only.

    `is_allowed`: check of an IP address; `tls`: context of connections.
    """

    def __init__(
        self,
        hosts: Collection[str],
        max_bytes: int,
        *,
        is_allowed: Callable[[str], bool] = is_public,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._hosts = frozenset(host.lower() for host in hosts)
        self._max_bytes = max_bytes
        self._is_allowed = is_allowed
        self._tls = tls

    def read(self, url: str, param: str) -> bytes:
        """The bytes behind a URL. Raises RequestError that names `param`, the value and the bound."""
        url = url.strip()  # as browsers do
        scheme = url.partition(":")[0].lower()
        if scheme == "data":
            return self._of_data(url, param)
        if scheme == "https":
            with lent_slot():
                return self._of_https(url, param)
        raise RequestError(
            f"{param}={url[:40]!r}: an image is a data: URL, or an https: URL of a host that the operator allows",
            param,
        )

    def _of_data(self, url: str, param: str) -> bytes:
        head, comma, body = url.partition(",")
        if not comma:
            raise RequestError(f"{param}: a data: URL has a comma before its data", param)
        if len(body) > 4 * self._max_bytes:
            raise self._too_large(f"{len(body)} characters", param)
        data = unquote_to_bytes(body) if "%" in body else body.encode("utf-8", "surrogatepass")
        if _BASE64.search(head):
            data = _of_base64(data, param)
        if len(data) > self._max_bytes:
            raise self._too_large(f"{len(data)} bytes", param)
        if not data:
            raise RequestError(f"{param}: the image is empty", param)
        return data

    def _of_https(self, url: str, param: str) -> bytes:
        host, target = self._checked(url, param)
        address = self._address(host, param)
        deadline = time.monotonic() + FETCH_SECONDS
        connection = _Pinned(host, address, self._tls or ssl.create_default_context())
        try:
            connection.request("GET", target, headers={"Accept": "image/*"})
            return self._body(connection.getresponse(), deadline, param)
        except (OSError, http.client.HTTPException) as error:
            # What went wrong in there may name addresses; the client learns the kind of it.
            raise RequestError(
                f"{param}: the image could not be read from {host}: {type(error).__name__}", param
            ) from None
        finally:
            connection.close()

    def _checked(self, url: str, param: str) -> tuple[str, str]:
        """The host and the target of an address that may be read."""
        if len(url) > MAX_URL_CHARS:
            raise RequestError(
                f"{param}: the URL has {len(url)} characters; at most {MAX_URL_CHARS} are allowed",
                param,
            )
        try:
            parts = urlsplit(url)
            host = (parts.hostname or "").lower()
            is_plain = parts.port in (None, HTTPS_PORT) and parts.username is None
        except ValueError:
            raise RequestError(f"{param}={url[:40]!r} is no URL", param) from None
        if host not in self._hosts or not is_plain:
            known = ", ".join(sorted(self._hosts)) or "none"
            raise RequestError(
                f"{param}: images are not read from {host[:100]!r}; hosts that the operator allows, on port "
                f"{HTTPS_PORT}: {known} (--io-processor-option image_hosts=HOST). A data: URL always works",
                param,
            )
        if not url.isascii() or any(char <= " " for char in url):
            raise RequestError(f"{param}: the URL must be percent-encoded ASCII", param)
        target = parts.path or "/"
        return host, f"{target}?{parts.query}" if parts.query else target

    def _address(self, host: str, param: str) -> str:
        try:
            found = socket.getaddrinfo(host, HTTPS_PORT, type=socket.SOCK_STREAM)
        except OSError:
            raise RequestError(f"{param}: the host {host!r} is not known", param) from None
        addresses = [str(entry[4][0]) for entry in found]
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise RequestError(
                f"{param}: the host {host!r} has an address that is not public; images are not read from it",
                param,
            )
        return addresses[0]

    def _body(self, response: http.client.HTTPResponse, deadline: float, param: str) -> bytes:
        if response.status != http.client.OK:
            hint = "; redirects are not followed" if 300 <= response.status < 400 else ""
            raise RequestError(f"{param}: the host answered {response.status}{hint}", param)
        data = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            data += chunk
            if len(data) > self._max_bytes:
                raise self._too_large("more", param)
            if time.monotonic() > deadline:
                raise RequestError(
                    f"{param}: the image was not read within {FETCH_SECONDS:g} s", param
                )
        return bytes(data)

    def _too_large(self, what: str, param: str) -> RequestError:
        return RequestError(
            f"{param}: the image has {what}; at most {self._max_bytes} bytes are allowed", param
        )


def _of_base64(text: bytes, param: str) -> bytes:
    """Base64 as browsers read it in data: URLs: white space is skipped, and padding may be missing.

    In parts, between which other threads run: one call for all of it would hold the interpreter's lock.
    """
    data = bytearray()
    rest = b""
    text = text.rstrip(_SPACE + b"=")
    try:
        for start in range(0, len(text), CHUNK_BYTES):
            part = rest + text[start : start + CHUNK_BYTES].translate(None, _SPACE)
            if b"=" in part:
                raise binascii.Error("padding before the end")
            end = len(part) - len(part) % 4
            data += base64.b64decode(part[:end], validate=True)
            rest = part[end:]
        data += base64.b64decode(rest + b"=" * (-len(rest) % 4), validate=True)
    except binascii.Error:
        raise RequestError(f"{param}: the data of this data: URL is no base64", param) from None
    return bytes(data)


class _Pinned(http.client.HTTPSConnection):
    """Connects to the address that was looked at, and checks the certificate of the host."""

    def __init__(self, host: str, address: str, tls: ssl.SSLContext) -> None:
        super().__init__(host, HTTPS_PORT, timeout=FETCH_SECONDS, context=tls)
        self._address = address
        self._tls = tls

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), self.timeout)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
