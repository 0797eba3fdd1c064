"""Feeds stat loggers: one observer thread behind a bounded queue. Front end; a slow or broken logger delays nobody."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tenonry.config import EngineConfig
from tenonry.errors import PluginFault
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.plugin_manager import build_plugin
from tenonry.plugin_plan import PlanEntry, PluginPlan
from tenonry.stats import EngineInfo, StatRecord

logger = logging.getLogger(__name__)
QUEUE_SIZE = 4096
ERRORS_BEFORE_QUARANTINE = 3
LEAST_INTERVAL_S = 0.01


class _Observer:
    """One logger and its health."""

    __slots__ = ("entry", "errors", "logger", "quarantined", "total_errors")

    def __init__(self, entry: PlanEntry, stat_logger: StatLogger) -> None:
        self.entry, self.logger = entry, stat_logger
        self.errors = self.total_errors = 0
        self.quarantined = False

    @property
    def interval_s(self) -> float:
        """As the logger says, within reason: this thread serves all of them."""
        try:
            wanted = float(self.logger.interval_s)
        except (TypeError, ValueError):
            return StatLogger.interval_s
        return min(wanted, threading.TIMEOUT_MAX) if wanted >= LEAST_INTERVAL_S else LEAST_INTERVAL_S

    def call(self, method: str, *args: Any) -> None:
        if self.quarantined:
            return
        try:
            getattr(self.logger, method)(*args)
            self.errors = 0
        except Exception as error:  # noqa: BLE001 - whatever a logger raises is its own affair
            self.errors += 1
            self.total_errors += 1
            fault = PluginFault(self.entry.name, self.entry.distribution, self.entry.version, method, error)
            logger.warning("%s", fault)
            if self.errors >= ERRORS_BEFORE_QUARANTINE:
                self.quarantined = True
                logger.error(  # noqa: TRY400 - the line above names the cause
                    "%s is quarantined after %d errors in a row", self.entry.label(), self.errors
                )


def _build(entry: PlanEntry, config: EngineConfig) -> StatLogger:
    made: StatLogger = build_plugin(
        entry, lambda options: StatLoggerContext(config, options=options, plugin_name=entry.name)
    )
    return made


class StatManager:
    """All chosen stat loggers. Every method returns at once; `dropped` counts records lost to a full queue."""

    def __init__(self, config: EngineConfig, plan: PluginPlan, extra: dict[str, StatLogger] | None = None) -> None:
        self._observers: list[_Observer] = []
        for entry in plan.all("stat_logger"):
            self._observers.append(_Observer(entry, _build(entry, config)))
        for name, stat_logger in (extra or {}).items():
            target = f"{type(stat_logger).__module__}:{type(stat_logger).__qualname__}"
            self._observers.append(_Observer(PlanEntry(kind="stat_logger", name=name, target=target), stat_logger))
        self.enabled = bool(self._observers)
        self.dropped = 0
        self._queue: queue.Queue[tuple[str | Callable[[], object], tuple[Any, ...]] | None] = queue.Queue(QUEUE_SIZE)
        self._thread: threading.Thread | None = None

    @property
    def loggers(self) -> dict[str, StatLogger]:
        """Loggers by the name they were chosen with."""
        return {observer.entry.name: observer.logger for observer in self._observers}

    @property
    def quarantined(self) -> list[str]:
        return [observer.entry.name for observer in self._observers if observer.quarantined]

    def initialized(self, info: EngineInfo) -> None:
        """The engines are ready, or their number changed."""
        if self.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._observe, name="tenonry-stats", daemon=True)
            self._thread.start()
        self.submit("log_engine_initialized", info)

    def record(self, record: StatRecord) -> None:
        self.submit("record", record)

    def submit(self, method: str, *args: Any) -> None:
        """Queue a call of every logger's `method`; dropped and counted when the queue is full."""
        if not self.enabled:
            return
        try:
            self._queue.put_nowait((method, args))
        except queue.Full:
            self.dropped += 1

    def after(self, function: Callable[[], object]) -> None:
        """Call `function`, on the observer's thread, once the loggers have heard all that was submitted so far."""
        try:
            if self._thread is None:
                raise queue.Full
            self._queue.put_nowait((function, ()))
        except queue.Full:  # or nobody listens: then there is nothing to wait for
            function()

    async def render(self) -> tuple[bytes, str] | None:
        """What the first logger that can render shows, and its content type; None if there is none."""
        renders = (getattr(stat_logger, "render", None) for stat_logger in self.loggers.values())
        render = next((render for render in renders if render is not None), None)
        return None if render is None else render()

    def _observe(self) -> None:
        due = {id(observer): time.monotonic() + observer.interval_s for observer in self._observers}
        while True:
            timeout = max(0.0, min(due.values()) - time.monotonic())
            try:
                item = self._queue.get(timeout=timeout)
            except queue.Empty:
                item = ("", ())
            if item is None:
                return
            call, args = item
            if callable(call):
                call()
                continue
            for observer in self._observers:
                if call:
                    observer.call(call, *args)
                if time.monotonic() >= due[id(observer)]:
                    observer.call("log")
                    due[id(observer)] = time.monotonic() + observer.interval_s

    def shutdown(self, timeout: float = 2.0) -> None:
        """Deliver what is queued, say goodbye, and stop; a logger that hangs is left behind. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        for last in (("log", ()), ("shutdown", ()), None):
            try:
                self._queue.put(last, timeout=timeout / 3)
            except queue.Full:
                break
        thread.join(timeout)
