"""Sends batches of spans, and logs once when the collector does not accept them. Runs on the SDK's sending thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger("tenonry.opentelemetry")
SILENCE_S = 300.0  # between two warnings
SDK_LOGGERS = (
    "opentelemetry.attributes",
    "opentelemetry.exporter.otlp.proto.http",
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk._shared_internal",
    "opentelemetry.sdk.trace",
    "opentelemetry.sdk.trace.export",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
)


class SdkLogCapture(logging.Filter):
    """Collects the SDK's log records on a capturing thread instead of logging them; other threads log as before.

    An unreachable collector, or a client's malformed header, would otherwise cost a line per batch or request. One
    instance is installed permanently: a thread that logs while a filter is removed may skip the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()
        for name in SDK_LOGGERS:
            # First, before a filter that drops repeated lines.
            logging.getLogger(name).filters.insert(0, self)

    @contextlib.contextmanager
    def capture(self) -> Iterator[list[str]]:
        """The messages that the SDK logs on this thread in the block."""
        messages: list[str] = []
        self._local.messages = messages
        try:
            yield messages
        finally:
            self._local.messages = None

    def filter(self, record: logging.LogRecord) -> bool:
        messages: list[str] | None = getattr(self._local, "messages", None)
        if messages is None:
            return True
        messages.append(record.getMessage())
        return False


SDK_LOG = SdkLogCapture()


class WatchedExporter(SpanExporter):
    """Sends through `exporter` to the collector that is `shown` in the log. `is_failing`: the last batch was lost."""

    def __init__(self, exporter: SpanExporter, shown: str) -> None:
        self._exporter = exporter
        self._shown = shown
        self.is_failing = False
        self._lost = 0
        # What the SDK logged about the batch that is being sent, or was sent last.
        self._messages: list[str] = []
        self._has_warned = False
        self._silent_until = 0.0
        self._is_shut_down = False
        self._lock = threading.Lock()  # the observer thread warns, too

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with SDK_LOG.capture() as self._messages:
            try:
                result = self._exporter.export(spans)
            except Exception as error:  # noqa: BLE001 - the batch is lost, which is logged below
                self._messages.append(f"{type(error).__name__}: {error}")
                result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._recovered()
        else:
            self.is_failing = True
            self.lost(len(spans), "no reason given")
        return result

    def lost(self, count: int, why: str) -> None:
        """Count lost spans; log a line unless there was one recently. The SDK's own message replaces `why`."""
        why = next(iter(self._messages), why)
        with self._lock:
            self._lost += count
            now = time.monotonic()
            if self._has_warned or now < self._silent_until:
                return
            self._has_warned = True
            self._silent_until = now + SILENCE_S
        logger.warning(
            "dropping spans for %s: %s; the next line follows when it accepts spans again",
            self._shown,
            why,
        )

    def _recovered(self) -> None:
        self.is_failing = False
        self._messages = []
        with self._lock:
            lost = self._lost
            self._lost = 0
            has_warned = self._has_warned
            self._has_warned = False
        if has_warned:
            logger.info("%s accepts spans again; %d were dropped", self._shown, lost)

    def shutdown(self) -> None:
        """Send nothing more; a batch that waits for another try is given up. Idempotent."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept here."""
        return True
