"""The stat logger `opentelemetry`: makes a span of every finished request and leaves it to a thread that sends it. Runs
on the observer thread of one process; the OpenTelemetry SDK is loaded when it is built.
"""

from __future__ import annotations

import os

from pydantic import Field

from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import StatRecord
from tenonry_stat_logger_opentelemetry.attributes import request_attributes
from tenonry_stat_logger_opentelemetry.collector import collector_url


class OpenTelemetryOptions(PluginOptions):
    """Options of the opentelemetry stat logger. Standard OTEL_… variables apply to options that are not set."""

    endpoint: str | None = Field(
        None, min_length=1, description="Collector; without a path, /v1/traces is added."
    )
    headers: dict[str, str] = Field({}, description="HTTP headers for the collector.")
    service_name: str | None = Field(
        None, min_length=1, description="service.name of the spans. Defaults to tenonry."
    )
    sampling_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Sampled share of new traces, 0 to 1. For requests with a traceparent, "
        "the caller decides.",
    )
    vllm_names: bool = Field(True, description="Also set ids and counts under vLLM's names.")


class OpenTelemetryStatLogger(StatLogger):
    """One span per finished request, in the trace that its caller named. Raises ConfigError for a bad address."""

    Options = OpenTelemetryOptions
    traces = True

    def __init__(self, context: StatLoggerContext) -> None:
        super().__init__(context)
        from tenonry_stat_logger_opentelemetry.tracer import RequestTracer

        options = (
            context.options
            if isinstance(context.options, OpenTelemetryOptions)
            else OpenTelemetryOptions()
        )
        self._vllm_names = options.vllm_names
        self._model = (*context.config.served_model_name, context.config.model)[0]
        self._tracer = RequestTracer(
            collector_url(options.endpoint, os.environ),
            options.headers,
            options.service_name,
            options.sampling_ratio,
        )

    def record(self, record: StatRecord) -> None:
        for request in record.iteration.finished if record.iteration is not None else ():
            attributes = request_attributes(
                request, self._model, record.engine_index, vllm_names=self._vllm_names
            )
            self._tracer.add(request, attributes)

    def log_engine_initialized(self, info: EngineInfo) -> None:
        self._model = info.served_model_name

    def shutdown(self) -> None:
        self._tracer.close()
