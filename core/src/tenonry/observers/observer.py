"""One stat logger and its health: what it raises is counted, and in the end it is called no more. Observer thread."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from tenonry.errors import PluginFault
from tenonry.info import PluginRecord
from tenonry.interfaces.stat_logger import StatLogger

logger = logging.getLogger(__name__)
ERRORS_BEFORE_QUARANTINE = 3
LEAST_INTERVAL_S = 0.01


class Observer:
    """`due`: when `log` is to be called next, on the monotonic clock."""

    __slots__ = ("_errors", "_in_call", "_is_quarantined", "due", "entry", "logger")

    def __init__(self, entry: PluginRecord, stat_logger: StatLogger) -> None:
        self.entry = entry
        self.logger = stat_logger
        self.due = 0.0
        self._errors = 0
        self._in_call = ""
        self._is_quarantined = False

    def call(self, method: str, *args: Any) -> None:
        """Raises nothing."""
        if self._is_quarantined:
            return
        self._in_call = method
        try:
            getattr(self.logger, method)(*args)
            self._errors = 0
        except Exception as error:  # noqa: BLE001 - it is counted and logged
            self._errors += 1
            fault = PluginFault(
                self.entry.name, self.entry.distribution, self.entry.version, method, error
            )
            logger.warning("%s", fault)
            if self._errors == ERRORS_BEFORE_QUARANTINE:
                self._quarantine(f"after {self._errors} errors in a row")

    def leave(self, seconds: float) -> None:
        """Its call has not returned for so long. From another thread."""
        self._quarantine(f"after {seconds:g} s in '{self._in_call}', which has not returned")

    def _quarantine(self, why: str) -> None:
        self._is_quarantined = True
        logger.error("%s is quarantined %s: it is called no more", self.entry.label(), why)

    def log_later(self) -> None:
        """After the interval that the logger asks for, but no shorter than the least: the thread serves all loggers."""
        try:
            wanted = float(self.logger.interval_s)
        except (TypeError, ValueError):
            wanted = StatLogger.interval_s
        interval_s = max(LEAST_INTERVAL_S, wanted)  # the least for what is not a number
        self.due = time.monotonic() + min(interval_s, threading.TIMEOUT_MAX)
