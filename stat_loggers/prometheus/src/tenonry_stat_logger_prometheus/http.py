"""Answers scrapes on a separate port, for processes without a server with a /metrics route: offline use, or a
supervisor of several API servers. One daemon thread of the process that owns the stat logger.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET6

from tenonry.errors import ConfigError

PATHS = ("/metrics", "/")
CLOSE_WITHIN_S = 0.05  # the default of half a second is time that every shutdown takes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_port = False  # two servers on one port would share its scrapes


class _ServerV6(_Server):
    address_family = AF_INET6


class MetricsServer:
    """Binds on construction, so that a port in use stops the start. `port` is the one in use; raises ConfigError."""

    def __init__(self, render: Callable[[], tuple[bytes, str]], host: str, port: int) -> None:
        try:
            self._server = (_ServerV6 if ":" in host else _Server)((host, port), _handler(render))
        except OSError as error:
            raise ConfigError(
                f"stat logger option prometheus.port={port}: {host}:{port} cannot be bound ({error.strerror}); "
                "choose another port, or leave it unset and scrape the server's /metrics"
            ) from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            args=(CLOSE_WITHIN_S,),
            name="tenonry-metrics",
            daemon=True,
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port. May be called again."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(render: Callable[[], tuple[bytes, str]]) -> type[BaseHTTPRequestHandler]:
    class MetricsHandler(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a client to send its request

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in PATHS:
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body, content_type = render()
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            """Scrapes come every few seconds; they are not worth a line."""

    return MetricsHandler
