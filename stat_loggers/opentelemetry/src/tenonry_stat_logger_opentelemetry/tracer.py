"""Makes spans and hands them to the SDK's sending thread. Observer thread; needs the OpenTelemetry SDK."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tenonry.stats import FinishedRequestStats
from tenonry.version import __version__
from tenonry_stat_logger_opentelemetry.attributes import Attribute
from tenonry_stat_logger_opentelemetry.collector import shown
from tenonry_stat_logger_opentelemetry.exporter import SDK_LOG, WatchedExporter

SPAN_NAME = "llm_request"  # as in vLLM: dashboards look for it
FLUSH_S = 1.0  # what is still unsent at the end gets this long; the kernel waits two seconds for all loggers
FINAL_FLUSH_S = 0.2  # for the warning about what is lost
NS = 1_000_000_000


class RequestTracer:
    """Spans of one service for one collector, `url`. OTEL_… variables apply to arguments that are not set."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        service_name: str | None,
        sampling_ratio: float | None,
    ) -> None:
        named = (
            service_name
            or OTELResourceDetector().detect().attributes.get(SERVICE_NAME)
            or "tenonry"
        )
        sampler = None if sampling_ratio is None else ParentBased(TraceIdRatioBased(sampling_ratio))
        exporter = OTLPSpanExporter(endpoint=url, headers=dict(headers) or None)
        self._exporter = WatchedExporter(exporter, shown(url))
        self._provider = TracerProvider(
            sampler=sampler, resource=Resource.create({SERVICE_NAME: named}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("tenonry", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def add(self, request: FinishedRequestStats, attributes: Mapping[str, Attribute]) -> None:
        """Queue the span of a finished request, if its trace is sampled. Does not block."""
        start = request.start_time or time.time() - request.e2e_latency_s
        carrier = {name.lower(): value for name, value in (request.trace_headers or {}).items()}
        # Headers that make no sense are a client's affair, and begin a new trace.
        with SDK_LOG.capture():
            parent = self._propagator.extract(carrier, context=Context())
            span = self._tracer.start_span(
                SPAN_NAME,
                parent,
                SpanKind.SERVER,
                attributes=attributes,
                start_time=int(start * NS),
            )
            if request.finish_reason == "error":
                span.set_status(Status(StatusCode.ERROR))
        with SDK_LOG.capture() as messages:
            span.end(int((start + request.e2e_latency_s) * NS))
        if messages:  # the queue is full, and the oldest span in it made room
            self._exporter.lost(1, "more come than it takes")

    def close(self) -> None:
        """Send the remaining spans, within a bound; an unreachable collector is not awaited. Idempotent."""
        if self._exporter.is_failing:
            self._exporter.shutdown()
        flush = threading.Thread(target=self._flush, name="tenonry-spans", daemon=True)
        flush.start()
        flush.join(FLUSH_S)
        self._exporter.shutdown()  # ends a wait for another try, which then logs what is lost
        flush.join(FINAL_FLUSH_S)

    def _flush(self) -> None:
        with SDK_LOG.capture():
            self._provider.shutdown()
