"""The conformance suite of stat loggers, with one line for all engines and with one for each (SL-1)."""

from __future__ import annotations

from typing import Any, ClassVar

from tenonry_testkit.stat_logger import StatLoggerContract


class TestConsole(StatLoggerContract):
    stat_logger = "console"


class TestConsolePerEngine(StatLoggerContract):
    stat_logger = "console"
    options: ClassVar[dict[str, Any]] = {"per_engine": True}
