"""uvicorn, started from code on a listening socket: no signal handlers, and additional limits.

httptools parses without limits on the size of a request's head or the time that it may take; the protocol below adds
them, and answers invalid HTTP in OpenAI's error shape. In a flood, requests with bodies are parsed a few per turn of
the event loop, and probes overtake them. Front end, in the thread of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from tenonry.errors import ConfigError
from tenonry_openai_server.acceptor import (
    MAX_ACCEPTED_PER_TURN,
    MAX_ACCEPTED_PER_TURN_SHARED,
    Acceptor,
)
from tenonry_openai_server.errors import APIError
from tenonry_openai_server.loop_throttle import LoopThrottle
from tenonry_openai_server.settings import ServerConfig

# RFC 9112 section 3.2 and RFC 3986 section 3.2: a name or an address, and perhaps a port; empty for no authority.
_HOST = re.compile(
    rb"(?:\[[0-9A-Za-z:.%~_-]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?"
)
MAX_DISCARDED_BYTES = 256 << 20
CLOSE_TIMEOUT_S = 2
MAX_PARSED_PER_TURN = (
    4  # pieces of requests, by the time of a millisecond for the work that one of them causes
)
PROBE_METHODS = (b"GET ", b"HEAD ")
HANG_UP_S = 1.0


class UnframedCycle(RequestResponseCycle):
    """Response to HTTP/1.0, which has no chunks: without a length, the end of the connection ends it."""

    async def send(self, message: Any) -> None:
        self.expected_content_length = len(message.get("body", b""))
        await super().send(message)


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with a bounded head: `max_header_bytes` in size, `receive_timeout` in seconds.

    `turns` bounds the input of all connections that is parsed per iteration of the event loop.
    """

    max_header_bytes: ClassVar[int]
    receive_timeout: ClassVar[float]
    turns: ClassVar[LoopThrottle]
    _head_bytes = 0  # as headers end; a header that never ends shows in _raw_bytes
    _raw_bytes = 0
    _discarded = 0
    _ignoring = False
    _in_message = False
    _refusal = "this is no valid HTTP/1.1 request"
    _head_timer: asyncio.TimerHandle | None = None  # there while a head is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._unparsed: list[bytes] = []  # while it waits for a turn
        super().connection_made(transport)
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._unparsed.clear()
        for cycle in self._unanswered:  # the base class notifies only the last of several
            cycle.disconnected = True
            cycle.message_event.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ignoring:
            self._discard(data)
        elif self._unparsed:
            self._unparsed.append(data)
        elif data.startswith(PROBE_METHODS) or self.turns.take():
            self._parse(data)
        else:
            self._unparsed.append(data)
            self.flow.pause_reading()
            self.turns.wait(self._parse_waiting)

    def _parse_waiting(self) -> None:
        """Parse input deferred in a flood. Nothing is left to parse if the connection was lost during the wait."""
        data = b"".join(self._unparsed)
        self._unparsed.clear()
        if data and not self.transport.is_closing():
            self.flow.resume_reading()
            self._parse(data)

    def timeout_keep_alive_handler(self) -> None:
        """A request that waits for its turn keeps its connection."""
        if not self._unparsed:
            super().timeout_keep_alive_handler()

    def _parse(self, data: bytes) -> None:
        awaited = self._head_timer is not None
        self._raw_bytes = self._raw_bytes + len(data) if awaited else 0
        super().data_received(data)
        if awaited and self._head_timer is not None and self._raw_bytes > self.max_header_bytes:
            self._answer(self._too_large())

    def _unset_keepalive_if_required(self) -> None:
        """The rest of a body, after its answer, does not prolong the life of a connection."""
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        if not (self._in_message and cycle is not None and cycle.response_complete):
            super()._unset_keepalive_if_required()

    def on_message_begin(self) -> None:
        super()._unset_keepalive_if_required()
        super().on_message_begin()
        self._in_message = True
        self._head_bytes = 0
        self._arm()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(name)
        self._count(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._check_host()
        self._disarm()
        super().on_headers_complete()
        self._unanswered.append(self.cycle)
        if self.scope["http_version"] == "1.0":
            self.cycle.__class__ = UnframedCycle
            self.cycle.chunked_encoding = False

    def on_message_complete(self) -> None:
        self._in_message = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()

    def on_body(self, body: bytes) -> None:
        if (
            self.cycle.response_complete
        ):  # the request was rejected; the rest of it is read and discarded
            self._discard(body)
        super().on_body(body)

    def _discard(self, data: bytes) -> None:
        self._discarded += len(data)
        if self._discarded > MAX_DISCARDED_BYTES:
            self.transport.abort()

    def _count(self, part: bytes) -> None:
        self._head_bytes += len(part)
        if self._head_bytes > self.max_header_bytes:
            raise ValueError("the head is too large")  # httptools converts it to its own error

    def _check_host(self) -> None:
        """Raise ValueError, which httptools converts to its own error."""
        hosts = [value for name, value in self.headers if name == b"host"]
        if not hosts and self.parser.get_http_version() != "1.0":
            self._refusal = "HTTP/1.1 needs a Host header"
        elif len(hosts) > 1:
            self._refusal = f"there are {len(hosts)} Host headers; send one"
        elif hosts and not _HOST.fullmatch(hosts[0]):
            self._refusal = "the Host header is no host name or address with an optional port"
        else:
            return
        raise ValueError(self._refusal)

    def send_400_response(self, msg: str) -> None:
        """Answer input that could not be parsed, and close."""
        if self._head_bytes > self.max_header_bytes:
            self._answer(self._too_large())
        else:
            self._answer(APIError(400, self._refusal, code="invalid_http"))

    def _too_large(self) -> APIError:
        message = f"the request line and headers are larger than {self.max_header_bytes} bytes"
        return APIError(431, message, code="headers_too_large")

    @property
    def _is_responding(self) -> bool:
        return bool(self._unanswered) and self._unanswered[0].response_started

    def _answer(self, error: APIError) -> None:
        self._disarm()
        if not self._is_responding:
            body = error.body()
            head = (
                b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
                % len(body)
            )
            self.transport.write(STATUS_LINE[error.status_code] + head + body)
            self._hang_up()
        else:
            self.transport.close()

    def _hang_up(self) -> None:
        """Close a little later: closing with bytes unread resets the connection before the client reads the answer."""
        self._ignoring = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(HANG_UP_S, self.transport.close)

    def _arm(self) -> None:
        self._disarm()
        self._head_timer = self.loop.call_later(self.receive_timeout, self._too_slow)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _too_slow(self) -> None:
        if self._is_responding or self._unparsed:
            self._arm()
        elif self._raw_bytes:
            self._answer(
                APIError(408, f"no request came for {self.receive_timeout:g} s", code="timeout")
            )
        else:
            self.transport.close()


class HTTPServer(uvicorn.Server):
    """uvicorn's server with another acceptor; the process that starts it handles signals."""

    def __init__(self, config: uvicorn.Config, *, max_accepted_per_turn: int) -> None:
        super().__init__(config)
        self._max_accepted_per_turn = max_accepted_per_turn
        self._acceptors: list[Acceptor] = []

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections on `sockets` from now on."""
        await super().startup(sockets=[])
        self._acceptors = [
            Acceptor(
                sock, self._make_protocol, self.config.ssl, max_per_turn=self._max_accepted_per_turn
            )
            for sock in sockets or ()
        ]

    def _make_protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting, and finish the answers of open connections."""
        for acceptor in self._acceptors:
            acceptor.close()
        await super().shutdown(sockets=sockets)


def make_server(app: ASGIApp, settings: ServerConfig, *, is_shared: bool = False) -> HTTPServer:
    """The server, configured. `is_shared`: other processes listen on its socket, too.

    Raises ConfigError for certificates that cannot be used.
    """
    limits: dict[str, Any] = {
        "max_header_bytes": settings.max_header_bytes,
        "receive_timeout": settings.receive_timeout,
        "turns": LoopThrottle(MAX_PARSED_PER_TURN),
    }
    config = uvicorn.Config(
        app,
        http=type("BoundedProtocol", (BoundedProtocol,), limits),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=not settings.disable_access_log,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        backlog=settings.backlog,
        timeout_keep_alive=settings.keep_alive_timeout,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_keyfile_password=settings.ssl_keyfile_password,
        ssl_ca_certs=settings.ssl_ca_certs,
        ssl_cert_reqs=ssl.CERT_REQUIRED if settings.ssl_ca_certs else ssl.CERT_NONE,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        files = {
            name: getattr(settings, name)
            for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        }
        named = ", ".join(f"{name}={file}" for name, file in files.items() if file)
        raise ConfigError(f"{named}: {error}") from None
    per_turn = MAX_ACCEPTED_PER_TURN_SHARED if is_shared else MAX_ACCEPTED_PER_TURN
    return HTTPServer(config, max_accepted_per_turn=per_turn)


async def serve_on(server: HTTPServer, sock: socket.socket) -> None:
    """Answer until `server.should_exit`."""
    await server.serve(sockets=[sock])
