"""Feeds stat loggers, each through its own bounded queue, so that a slow one delays no token. Front end."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import IterationStats, SchedulerStats, StatRecord

logger = logging.getLogger(__name__)
QUEUE_SIZE = 4096
ERRORS_BEFORE_QUARANTINE = 3
MAX_CALL_S = 10
LEAST_INTERVAL_S = 0.01
TICK_S = 1.0


class StatManager:
    """All chosen stat loggers, `loggers` by name. Every method returns immediately.

    `traces`: at least one logger sets it.
    """

    def __init__(
        self, config: EngineConfig, plan: PluginPlan, extra: dict[str, StatLogger] | None = None
    ) -> None:
        self._observers: list[Observer] = []
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()
        try:
            for entry in plan.all("stat_logger"):
                context = StatLoggerContext(config, plugin_name=entry.name)
                self._observers.append(Observer(entry, build_plugin(entry, context)))
        except BaseException:
            self.enabled = True
            self.shutdown()  # constructed loggers may hold a port
            raise
        for name, stat_logger in (extra or {}).items():
            target = f"{type(stat_logger).__module__}:{type(stat_logger).__qualname__}"
            self._observers.append(Observer(PluginRecord("stat_logger", name, target), stat_logger))
        self.loggers = {observer.entry.name: observer.logger for observer in self._observers}
        self.enabled = bool(self._observers)
        self.traces = any(observer.logger.traces for observer in self._observers)

    def initialized(self, info: EngineInfo) -> None:
        """Report that the engines are ready, or that their number changed."""
        if self.enabled and not self._watcher:
            for observer in self._observers:
                observer.start()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        self.submit("log_engine_initialized", info)

    def _watch(self) -> None:
        """Count the seconds of calls, without those in which this process was stopped."""
        while not self._ended.wait(TICK_S):
            for observer in self._observers:
                observer.tick()

    def observe(
        self, engine_index: int, scheduler: SchedulerStats, iteration: IterationStats | None = None
    ) -> None:
        """Record an engine's numbers, and those of its requests from this front end."""
        self.record(
            StatRecord(
                engine_index=engine_index,
                time=time.monotonic(),
                scheduler=scheduler,
                iteration=iteration,
            )
        )

    def record(self, record: StatRecord) -> None:
        self.submit("record", record)

    def submit(self, method: str, *args: Any) -> None:
        """Queue a call of every logger's `method`; dropped, counted and logged if a queue is full."""
        if self.enabled:
            for observer in self._observers:
                observer.submit(method, *args)

    def after(self, function: Callable[[], object]) -> None:
        """Call `function`, from any thread, once the loggers that render have processed everything submitted so far."""
        for observer in self._observers if self._watcher else ():
            if hasattr(observer.logger, "render"):
                function = partial(observer.after, function)
        function()

    async def render(self) -> tuple[bytes, str] | None:
        """Return the page of the first logger that renders one, and its content type; None without one."""
        pages = [each.render for each in self.loggers.values() if hasattr(each, "render")]
        return pages[0]() if pages else None

    def shutdown(self, timeout: float = 2.0) -> None:
        """Flush the queues, shut the loggers down, and stop; a hanging logger is abandoned. Idempotent."""
        if not self.enabled:
            return
        self.enabled = False
        self._ended.set()
        for observer in self._observers:
            observer.stop()
        deadline = time.monotonic() + timeout
        for thread in (self._watcher, *(observer.thread for observer in self._observers)):
            if thread:
                thread.join(max(0.0, deadline - time.monotonic()))


class Observer:
    """Calls one logger in order, until it is quarantined. `dropped`: calls lost to a full queue. `thread`: None before
    `start`.
    """

    def __init__(self, entry: PluginRecord, stat_logger: StatLogger) -> None:
        self.entry = entry
        self.logger = stat_logger
        self.dropped = 0
        self._queue: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        self._errors = 0
        self._call = ""
        self._call_s = 0
        self._is_quarantined = False
        self._is_ending = False

    def start(self) -> None:
        """Call the logger from its own thread from now on."""
        self.thread = threading.Thread(target=self._run, name="tenonry-stats", daemon=True)
        self.thread.start()

    def submit(self, method: str, *args: Any) -> None:
        """Queue a call; dropped and counted if the queue is full, and logged the first time."""
        if self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(partial(self.call, method, *args))
        else:
            if not self.dropped:
                logger.warning("%s is too slow; records were dropped", self.entry.label())
            self.dropped += 1

    def after(self, function: Callable[[], object]) -> None:
        """Call `function` once the logger has processed its queue."""
        self._queue.put(function)

    def _run(self) -> None:
        due = self._next_log()
        while threading.current_thread() is self.thread:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=max(0.0, due - time.monotonic()))()
            is_over = self._is_ending and self._queue.empty()  # in this order: the end comes last
            if is_over or time.monotonic() >= due:
                due = self._next_log()
                self.call("log")
            if is_over:
                self.call("shutdown")
                return

    def _next_log(self) -> float:
        """Time of the next `log`, on the monotonic clock: after the logger's interval, at least the minimum."""
        wanted: Any = self.logger.interval_s
        if not isinstance(wanted, int | float):
            wanted = StatLogger.interval_s
        interval_s: float = max(LEAST_INTERVAL_S, wanted)  # also replaces NaN
        return time.monotonic() + min(interval_s, threading.TIMEOUT_MAX)

    def call(self, method: str, *args: Any) -> None:
        """Call the logger now, unless it is quarantined. Raises nothing."""
        if self._is_quarantined:
            return
        self._call_s = 0
        self._call = method
        try:
            getattr(self.logger, method)(*args)
            self._errors = 0
        except BaseException as error:  # noqa: BLE001 - it is counted and logged
            self._errors += 1
            logger.warning("%s", self.entry.fault(method, error))
            if self._errors == ERRORS_BEFORE_QUARANTINE:
                self._quarantine(f"after {self._errors} errors in a row")
        self._call = ""

    def tick(self) -> None:
        """Count one second. Another thread takes over the queue of a logger whose call does not return."""
        if self._call:
            self._call_s += 1
            if self._call_s == MAX_CALL_S:
                self._quarantine(f"after {MAX_CALL_S} s in '{self._call}', which has not returned")
                self.start()

    def _quarantine(self, why: str) -> None:
        self._is_quarantined = True
        logger.error("%s is quarantined %s; it is not called again", self.entry.label(), why)

    def stop(self) -> None:
        """Flush the queue, log, and shut the logger down; then `thread` ends."""
        self._is_ending = True
        if not self.thread:  # the engines never became ready, but the logger may hold a port
            self.call("shutdown")
        self.after(lambda: None)  # wakes the thread
