"""Feeds stat loggers: one observer thread behind a bounded queue, so that a slow logger delays no token. Front end.

A logger whose call does not return is left behind with the thread that waits for it, and another thread goes on.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from tenonry.config import EngineConfig
from tenonry.info import EngineInfo, PluginRecord
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.messages import EngineCoreOutputs
from tenonry.observers.observer import Observer
from tenonry.plugin.manager import build_plugin
from tenonry.plugin.plan import PluginPlan
from tenonry.stats import IterationStats, StatRecord

QUEUE_SIZE = 4096
MAX_CALL_S = 10  # a logger that takes longer keeps the others from what they are to see


class StatManager:
    """All chosen stat loggers, `loggers` by name. Every method returns immediately.

    `dropped` counts records lost to a full queue; `traces`: at least one logger has it.
    """

    def __init__(
        self, config: EngineConfig, plan: PluginPlan, extra: dict[str, StatLogger] | None = None
    ) -> None:
        self._observers: list[Observer] = []
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        # The call that the thread is in: whose it is, and what comes after it.
        self._current: tuple[Observer, Callable[[], object]] | None = None
        self._watched: tuple[Observer, Callable[[], object]] | None = None
        self._watched_s = 0
        self._watch_at = 0.0
        try:
            for entry in plan.all("stat_logger"):
                context = StatLoggerContext(config, plugin_name=entry.name)
                self._observers.append(Observer(entry, build_plugin(entry, context)))
        except BaseException:
            self._call("shutdown")  # those that were built may hold a port
            raise
        for name, stat_logger in (extra or {}).items():
            target = f"{type(stat_logger).__module__}:{type(stat_logger).__qualname__}"
            self._observers.append(
                Observer(PluginRecord(kind="stat_logger", name=name, target=target), stat_logger)
            )
        self.loggers = {observer.entry.name: observer.logger for observer in self._observers}
        self.enabled = bool(self._observers)
        self.traces = any(observer.logger.traces for observer in self._observers)
        self.dropped = 0
        self._queue: queue.Queue[Callable[[], object] | None] = queue.Queue(QUEUE_SIZE)

    def initialized(self, info: EngineInfo) -> None:
        """The engines are ready, or their number changed."""
        if self.enabled and self._thread is None:
            for observer in self._observers:
                observer.log_later()
            self._start(_nothing)
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
        self._watch()
        try:
            self._queue.put_nowait(lambda: self._call(method, *args))
        except queue.Full:
            self.dropped += 1

    def _call(self, method: str, *args: Any, first: int = 0) -> None:
        """Call the loggers from the one at `first` on."""
        for place in range(first, len(self._observers)):
            rest = partial(self._call, method, *args, first=place + 1)
            if not self._call_one(self._observers[place], rest, method, *args):
                return

    def _call_one(
        self, observer: Observer, rest: Callable[[], object], method: str, *args: Any
    ) -> bool:
        """Whether this thread is to go on; if not, another one does, with the `rest`."""
        with self._lock:
            if self._is_left():
                return False
            self._current = (observer, rest)
        observer.call(method, *args)
        with self._lock:
            if self._is_left():
                return False
            self._current = None
        return True

    def _is_left(self) -> bool:
        """Whether another thread has taken the place of this one."""
        return self._thread not in (None, threading.current_thread())

    def _watch(self) -> None:
        """Leave a call behind that goes on for `MAX_CALL_S`. Seconds in which nothing was to be recorded do not count,
        nor those in which this process stood still.
        """
        now = time.monotonic()
        if now < self._watch_at:
            return
        self._watch_at = now + 1.0
        with self._lock:
            self._watched_s += 1
            if self._current is None or self._current is not self._watched:
                self._watched = self._current
                self._watched_s = 0
            if self._watched is None or self._watched_s < MAX_CALL_S:
                return
            observer, rest = self._watched
            observer.leave(MAX_CALL_S)
            self._current = None
            self._start(rest)

    def _start(self, first: Callable[[], object]) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(first,), name="tenonry-stats", daemon=True
        )
        self._thread.start()

    def after(self, function: Callable[[], object]) -> None:
        """Call `function`, on the observer's thread, once the loggers have taken all that was submitted so far."""
        self._watch()
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

    def _run(self, first: Callable[[], object]) -> None:
        first()
        while not self._is_left():
            due = min(observer.due for observer in self._observers)
            timeout = max(0.0, due - time.monotonic())
            with contextlib.suppress(queue.Empty):
                work = self._queue.get(timeout=timeout)
                if work is None:
                    return
                work()
            for observer in self._observers:
                if time.monotonic() >= observer.due:
                    observer.log_later()
                    if not self._call_one(observer, _nothing, "log"):
                        return

    def shutdown(self, timeout: float = 2.0) -> None:
        """Deliver what is queued, shut the loggers down, and stop; a logger that hangs is left behind. Idempotent."""
        was_enabled = self.enabled
        self.enabled = False
        if self._thread is None:
            if was_enabled:  # the engines never became ready, but loggers may hold a port already
                self._call("shutdown")
            return
        if not was_enabled:
            return
        for last in (lambda: self._call("log"), lambda: self._call("shutdown"), None):
            try:
                self._queue.put(last, timeout=timeout / 3)
            except queue.Full:
                break
        self._thread.join(timeout)


def _nothing() -> None:
    """What comes after a call that was for one logger only."""
