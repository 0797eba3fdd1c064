"""Feeds stat loggers, each behind a bounded queue of its own, so that a slow one delays no token. Front end."""

from __future__ import annotations

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

TICK_S = 1.0


class StatManager:
    """All chosen stat loggers, `loggers` by name. Every method returns immediately.

    `traces`: at least one logger has it.
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
            self.shutdown()  # those that were built may hold a port
            raise
        for name, stat_logger in (extra or {}).items():
            target = f"{type(stat_logger).__module__}:{type(stat_logger).__qualname__}"
            self._observers.append(
                Observer(PluginRecord(kind="stat_logger", name=name, target=target), stat_logger)
            )
        self.loggers = {observer.entry.name: observer.logger for observer in self._observers}
        self.enabled = bool(self._observers)
        self.traces = any(observer.logger.traces for observer in self._observers)

    def initialized(self, info: EngineInfo) -> None:
        """The engines are ready, or their number changed."""
        if self.enabled and not self._watcher:
            for observer in self._observers:
                observer.start()
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        self.submit("log_engine_initialized", info)

    def _watch(self) -> None:
        """Count the seconds of calls. Those in which this process stood still do not count."""
        while not self._ended.wait(TICK_S):
            for observer in self._observers:
                observer.tick()

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
        """Queue a call of every logger's `method`; dropped, counted and logged where a queue is full."""
        if self.enabled:
            for observer in self._observers:
                observer.submit(method, *args)

    def after(self, function: Callable[[], object]) -> None:
        """Call `function`, from any thread, once the loggers have taken all that was submitted so far."""
        for observer in self._observers if self._watcher else ():
            function = partial(observer.after, function)
        function()

    async def render(self) -> tuple[bytes, str] | None:
        """What the first logger that can render shows, and its content type; None if there is none."""
        for stat_logger in self.loggers.values():
            render = getattr(stat_logger, "render", None)
            if render is not None:
                rendered: tuple[bytes, str] | None = render()
                return rendered
        return None

    def shutdown(self, timeout: float = 2.0) -> None:
        """Deliver what is queued, shut the loggers down, and stop; a logger that hangs is left behind. Idempotent."""
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
