"""The conformance suite of stat loggers, without a port and with one (SL-1)."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.stat_logger import StatLoggerContract


class TestPrometheus(StatLoggerContract):
    stat_logger = "prometheus"


class TestPrometheusWithPort(StatLoggerContract):
    """Port 0: the system picks a free one, so that two loggers can live in one process."""

    stat_logger = "prometheus"
    options: ClassVar[dict[str, Any]] = {"port": 0}
