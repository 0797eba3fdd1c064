"""The conformance suite of stat loggers, against a collector that listens (SL-1)."""

from __future__ import annotations

import pytest

from tenonry_stat_logger_opentelemetry.logger import OpenTelemetryStatLogger
from tenonry_testkit.stat_logger import StatLoggerContract


class TestOpenTelemetry(StatLoggerContract):
    stat_logger = OpenTelemetryStatLogger

    @pytest.fixture(autouse=True)
    def _listening(self, collector, monkeypatch):
        monkeypatch.setattr(type(self), "options", {"endpoint": collector.url})
