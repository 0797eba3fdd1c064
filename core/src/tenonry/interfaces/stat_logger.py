"""Stat logger: receives statistics. It runs in one process, on its own thread behind a bounded queue, and delays
neither tokens nor other loggers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import Plugin, PluginContext
from tenonry.stats import StatRecord


@dataclass(slots=True)
class StatLoggerContext(PluginContext):
    """Context of a stat logger."""

    plugin_name: str = ""


class StatLogger(Plugin[StatLoggerContext], ABC):
    """One observer of all engines. All calls come from one thread, in order.

    After three consecutive errors, or ten seconds in one call, a logger is quarantined: named in the log and not
    called again; serving and the other loggers continue.
    """

    interval_s: float = 5.0  # seconds between calls of `log`
    traces: bool = False  # joins requests to their callers' traces

    @abstractmethod
    def record(self, record: StatRecord) -> None:
        """Process one record."""

    def log_engine_initialized(self, info: EngineInfo) -> None:
        """The engines are ready; called again, with the new facts, when their number changes."""

    def log(self) -> None:
        """Called every `interval_s` seconds, and once at shutdown."""

    def record_sleep_state(self, sleeping: bool, level: int) -> None:
        """The engines went to sleep (level 1 or 2) or woke up (False, 0)."""

    def record_rejection(self, reason: str) -> None:
        """Record the rejection of a request; `reason` is one of "queue_full", "invalid", "draining"."""

    def record_ignored_field(self) -> None:
        """A field or another part of a request had no effect."""

    def record_extra(self, record: object) -> None:
        """A plugin's own record, such as `HelperStats` of tenonry-helper-pool. Ignore those of unknown types."""

    def shutdown(self) -> None:
        """The last call."""
