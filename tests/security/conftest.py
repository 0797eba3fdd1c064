"""A real server without a model for hostile clients, and raw HTTP to it."""

from __future__ import annotations

import http.client
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration"))

from server_process import ForkedServer, Server

from tenonry_demo_model import model_path

KEY = "sk-right"


class Door:
    """Sends raw requests to a server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.address = urlsplit(server.url).netloc

    def send(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers by lower-case name, and body."""
        connection = http.client.HTTPConnection(self.address, timeout=30)
        try:
            connection.request(method, path, body, dict(headers or {}))
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, names, answer.read()
        finally:
            connection.close()


def _serve(*arguments: str) -> Iterator[Door]:
    server = ForkedServer(model_path(), "--worker", "null", *arguments)
    try:
        yield Door(server.ready())
    finally:
        server.close()


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    """A server on a local address without a key; it ends with the file, for later tests count child processes."""
    yield from _serve()


@pytest.fixture(scope="module")
def locked_door() -> Iterator[Door]:
    """A server with a key and all routes."""
    yield from _serve("--api-key", KEY, "--enable-operator-routes")
