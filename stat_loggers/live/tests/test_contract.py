"""The conformance suite of stat loggers."""

from __future__ import annotations

from tenonry_testkit.stat_logger import StatLoggerContract


class TestLive(StatLoggerContract):
    stat_logger = "live"
