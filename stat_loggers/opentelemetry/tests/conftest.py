"""Shared fixtures: a collector, loggers that are shut down, and an environment without OTEL settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tenonry.config import EngineConfig
from tenonry.interfaces.stat_logger import StatLoggerContext
from tenonry.stats import FinishedRequestStats, IterationStats, StatRecord
from tenonry_stat_logger_opentelemetry.logger import OpenTelemetryOptions, OpenTelemetryStatLogger

sys.path.insert(0, str(Path(__file__).parent))

from otlp_collector import Collector


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.close()


@pytest.fixture
def make_logger(collector: Collector) -> Iterator[Any]:
    made: list[OpenTelemetryStatLogger] = []

    def make(served: tuple[str, ...] = ("demo",), **options: Any) -> OpenTelemetryStatLogger:
        config = EngineConfig(model="path/to/demo", served_model_name=served)
        chosen = OpenTelemetryOptions(**{"endpoint": collector.url, **options})
        made.append(OpenTelemetryStatLogger(StatLoggerContext(config, options=chosen)))
        return made[-1]

    yield make
    for logger in made:
        logger.shutdown()


def ended(**fields: Any) -> FinishedRequestStats:
    given = {
        "request_id": "r1",
        "finish_reason": "stop",
        "num_prompt_tokens": 40,
        "num_generation_tokens": 5,
    }
    times = {
        "e2e_latency_s": 3.0,
        "ttft_s": 1.0,
        "queued_s": 0.25,
        "prefill_s": 0.75,
        "decode_s": 1.5,
    }
    return FinishedRequestStats(**{**given, **times, "start_time": 1_700_000_000.0, **fields})


@pytest.fixture(scope="session")
def request_of() -> Any:
    """Makes a finished request."""
    return ended


@pytest.fixture(scope="session")
def record_of() -> Any:
    """Makes a record of one finished request."""

    def make(engine: int = 0, **fields: Any) -> StatRecord:
        return StatRecord(
            engine_index=engine, time=1.0, iteration=IterationStats(finished=[ended(**fields)])
        )

    return make
