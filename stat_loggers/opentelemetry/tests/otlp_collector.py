"""A collector for tests: takes OTLP over HTTP on a free port and decodes it with OpenTelemetry's own messages."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue


@dataclass
class Received:
    """One span, with the resource and scope of its batch."""

    span: Any
    attributes: dict[str, Any]
    resource: dict[str, Any]
    scope: Any


def plain(value: AnyValue) -> Any:
    """Plain value of an attribute."""
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [plain(one) for one in value.array_value.values]
    return getattr(value, kind)


def as_dict(attributes: Any) -> dict[str, Any]:
    return {one.key: plain(one.value) for one in attributes}


class Collector:
    """Answers each post with `status`, not before `open` is set; `posts` are paths and headers (by lower-case name)."""

    def __init__(self) -> None:
        self.status, self.posts, self.spans = 200, [], []
        self.open, self.asked = threading.Event(), threading.Event()
        self.open.set()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )
        self._thread.start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.asked.set()
                collector.open.wait(30)
                headers = {name.lower(): value for name, value in self.headers.items()}
                collector.take(self.path, headers, body)
                try:
                    self.send_response(collector.status)
                    self.send_header("content-length", "0")
                    self.end_headers()
                except OSError:  # the client no longer waits
                    self.close_connection = True

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Stay silent."""

        return Handler

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        self.posts.append((path, headers))
        if self.status == 200:
            for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
                for scoped in batch.scope_spans:
                    self.spans += [
                        Received(
                            span,
                            as_dict(span.attributes),
                            as_dict(batch.resource.attributes),
                            scoped.scope,
                        )
                        for span in scoped.spans
                    ]

    def wait(self, count: int = 1) -> list[Received]:
        """Wait for `count` spans, and return them."""
        for _ in range(1500):
            if len(self.spans) >= count:
                return self.spans
            time.sleep(0.02)
        raise AssertionError(f"{len(self.spans)} of {count} spans came; posts: {self.posts}")

    def close(self) -> None:
        self.open.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
