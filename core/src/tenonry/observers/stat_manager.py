"""Feeds stat loggers: one observer thread behind a bounded queue, so that a slow logger delays no token. Front end."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from tenonry.config import EngineConfig
from tenonry.errors import PluginFault
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.messages import EngineCoreOutputs
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import IterationStats, StatRecord

logger = logging.getLogger(__name__)
QUEUE_SIZE = 4096
ERRORS_BEFORE_QUARANTINE = 3
LEAST_INTERVAL_S = 0.01


class _Observer:
    """One logger and its health."""

    __slots__ = ("due", "entry", "errors", "logger")

    def __init__(self, entry: PluginRecord, stat_logger: StatLogger) -> None:
        self.entry = entry
        self.logger = stat_logger
        self.errors = 0
        self.due = 0.0

    def call(self, method: str, *args: Any) -> None:
        if self.errors >= ERRORS_BEFORE_QUARANTINE:
            return
        try:
            getattr(self.logger, method)(*args)
            self.errors = 0
        except Exception as error:  # noqa: BLE001 - it is counted and logged
            self.errors += 1
            fault = PluginFault(
                self.entry.name, self.entry.distribution, self.entry.version, method, error
            )
            logger.warning("%s", fault)
            if self.errors == ERRORS_BEFORE_QUARANTINE:
                logger.error(  # noqa: TRY400 - the line above names the cause
                    "%s is quarantined after %d errors in a row", self.entry.label(), self.errors
                )

    def log_later(self) -> None:
        """After the interval that the logger asks for, but no shorter than the least: the thread serves all loggers."""
        try:
            wanted = float(self.logger.interval_s)
        except (TypeError, ValueError):
            wanted = StatLogger.interval_s
        interval_s = max(LEAST_INTERVAL_S, wanted)  # the least for what is not a number
        self.due = time.monotonic() + min(interval_s, threading.TIMEOUT_MAX)


class StatManager:
    """All chosen stat loggers, `loggers` by name. Every method returns immediately.

    `dropped` counts records lost to a full queue; `traces`: at least one logger has it.
    """

    def __init__(
        self, config: EngineConfig, plan: PluginPlan, extra: dict[str, StatLogger] | None = None
    ) -> None:
        self._observers: list[_Observer] = []
        try:
            for entry in plan.all("stat_logger"):
                context = StatLoggerContext(config, plugin_name=entry.name)
                self._observers.append(_Observer(entry, build_plugin(entry, context)))
        except BaseException:
            self._call("shutdown")  # those that were built may hold a port
            raise
        for name, stat_logger in (extra or {}).items():
            target = f"{type(stat_logger).__module__}:{type(stat_logger).__qualname__}"
            self._observers.append(
                _Observer(PluginRecord(kind="stat_logger", name=name, target=target), stat_logger)
            )
        self.loggers = {observer.entry.name: observer.logger for observer in self._observers}
        self.enabled = bool(self._observers)
        self.traces = any(observer.logger.traces for observer in self._observers)
        self.dropped = 0
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(QUEUE_SIZE)
        self._thread: threading.Thread | None = None

    def initialized(self, info: EngineInfo) -> None:
        """The engines are ready, or their number changed."""
        if self.enabled and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tenonry-stats", daemon=True)
            self._thread.start()
        self.submit("log_engine_initialized", info)

    def observe(self, outputs: EngineCoreOutputs, iteration: IterationStats | None = None) -> None:
        """Record an engine's numbers, and those of this front end's requests there."""
        self.record(
            StatRecord(
                engine_index=outputs.engine_index,
                time=time.monotonic(),
                scheduler=outputs.scheduler_stats,
                iteration=iteration,
            )
        )

    def record(self, record: StatRecord) -> None:
        self.submit("record", record)

    def submit(self, method: str, *args: Any) -> None:
        """Queue a call of every logger's `method`; dropped and counted when the queue is full."""
        if not self.enabled:
            return
        try:
            self._queue.put_nowait(lambda: self._call(method, *args))
        except queue.Full:
            self.dropped += 1

    def _call(self, method: str, *args: Any) -> None:
        for observer in self._observers:
            observer.call(method, *args)

    def after(self, function: Callable[[], object]) -> None:
        """Call `function`, on the observer's thread, once the loggers have taken all that was submitted so far."""
        try:
            if self._thread is None:
                raise queue.Full
            self._queue.put_nowait(function)
        except queue.Full:  # or there is no thread, and nothing to wait for
            function()

    async def render(self) -> tuple[bytes, str] | None:
        """What the first logger that can render shows, and its content type; None if there is none."""
        for stat_logger in self.loggers.values():
            render = getattr(stat_logger, "render", None)
            if render is not None:
                rendered: tuple[bytes, str] | None = render()
                return rendered
        return None

    def _run(self) -> None:
        for observer in self._observers:
            observer.log_later()
        while True:
            due = min(observer.due for observer in self._observers)
            timeout = max(0.0, due - time.monotonic())
            with contextlib.suppress(queue.Empty):
                work = self._queue.get(timeout=timeout)
                if work is None:
                    return
                work()
            for observer in self._observers:
                if time.monotonic() >= observer.due:
                    observer.call("log")
                    observer.log_later()

    def shutdown(self, timeout: float = 2.0) -> None:
        """Deliver what is queued, shut the loggers down, and stop; a logger that hangs is left behind. Idempotent."""
        thread = self._thread
        was_enabled = self.enabled
        self._thread = None
        self.enabled = False
        if thread is None:
            if was_enabled:  # the engines never became ready, but loggers may hold a port already
                self._call("shutdown")
            return
        for last in (lambda: self._call("log"), lambda: self._call("shutdown"), None):
            try:
                self._queue.put(last, timeout=timeout / 3)
            except queue.Full:
                break
        thread.join(timeout)
