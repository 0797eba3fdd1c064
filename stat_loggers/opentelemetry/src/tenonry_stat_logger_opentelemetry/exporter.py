"""Sends batches of spans and says in the log, once, when nobody takes them. Lives on the SDK's sending thread."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger("tenonry.opentelemetry")
SILENCE_S = 300.0  # between two complaints
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


class Hush(logging.Filter):
    """Takes what the SDK says about our spans out of its loggers, and hands it to us. Its other users are still heard.

    A collector that is away, or a client's malformed header, would else be a line per batch or request. There is one
    of it, which stays: a thread that logs while a filter is removed may pass over the next one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._local = threading.local()
        for name in SDK_LOGGERS:
            logging.getLogger(name).filters.insert(
                0, self
            )  # before one that lets no line through twice

    @contextlib.contextmanager
    def listening(self) -> Iterator[list[str]]:
        """What this thread says in the block."""
        said: list[str] = []
        self._local.said = said
        try:
            yield said
        finally:
            self._local.said = None

    def filter(self, record: logging.LogRecord) -> bool:
        said: list[str] | None = getattr(self._local, "said", None)
        if said is not None:
            said.append(record.getMessage())
        return said is None


HUSH = Hush()


class WatchedExporter(SpanExporter):
    """Sends through `exporter` to the collector that is `shown` in the log. `is_failing`: the last batch was lost."""

    def __init__(self, exporter: SpanExporter, shown: str) -> None:
        self._exporter, self._shown = exporter, shown
        self.is_failing, self._lost = False, 0
        self._said: list[
            str
        ] = []  # by the SDK, about the batch that is being sent, or was sent last
        self._has_complained, self._silent_until = False, 0.0
        self._is_shut_down = False
        self._lock = threading.Lock()  # the observer thread complains, too

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with HUSH.listening() as self._said:
            try:
                result = self._exporter.export(spans)
            except Exception as error:  # noqa: BLE001 - the batch is lost, which is said below
                self._said.append(f"{type(error).__name__}: {error}")
                result = SpanExportResult.FAILURE
        if result is SpanExportResult.SUCCESS:
            self._recovered()
        else:
            self.is_failing = True
            self.lost(len(spans), "no reason given")
        return result

    def lost(self, count: int, why: str) -> None:
        """Spans that nobody will see; worth a line if there was none for a while. The SDK may know better why."""
        why = next(iter(self._said), why)
        with self._lock:
            self._lost += count
            now = time.monotonic()
            if self._has_complained or now < self._silent_until:
                return
            self._has_complained, self._silent_until = True, now + SILENCE_S
        logger.warning(
            "spans for %s are lost: %s; nothing more is said until it takes some", self._shown, why
        )

    def _recovered(self) -> None:
        self.is_failing, self._said = False, []
        with self._lock:
            lost, self._lost = self._lost, 0
            has_complained, self._has_complained = self._has_complained, False
        if has_complained:
            logger.info("%s takes spans again; %d were lost", self._shown, lost)

    def shutdown(self) -> None:
        """Send nothing more; a batch that waits for another try is given up. Idempotent."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept here."""
        return True
