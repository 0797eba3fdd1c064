"""The stat logger `console`: one readable line every few seconds while there is work, none while the engines
are idle. Runs on the observer thread of one process; it counts, and writes through the standard logging module.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping

from pydantic import Field

from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import SchedulerStats, StatRecord

logger = logging.getLogger("tenonry.stats")

MAX_EXTRAS = 8  # more of a scheduler author's own numbers would make the line unreadable


class ConsoleOptions(PluginOptions):
    """Options of the console stat logger."""

    interval_s: float = Field(5.0, gt=0, le=3600, description="Seconds between two lines.")
    per_engine: bool = Field(False, description="One line per engine instead of one for all.")


class _Window:
    """Counts of one engine since the previous line, and its last known state."""

    __slots__ = (
        "accepted",
        "draft_tokens",
        "drafts",
        "generation_tokens",
        "hits",
        "latest",
        "preemptions",
        "prompt_tokens",
        "queries",
    )

    def __init__(self) -> None:
        self.latest = SchedulerStats()
        self.restart()

    def restart(self) -> None:
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.queries = 0
        self.hits = 0
        self.preemptions = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted = 0

    def add(self, record: StatRecord) -> None:
        iteration = record.iteration
        if iteration is not None:
            self.prompt_tokens += iteration.num_prompt_tokens
            self.generation_tokens += iteration.num_generation_tokens
        scheduler = record.scheduler
        if scheduler is not None:
            self.latest = scheduler
            self.queries += scheduler.prefix_cache_queries
            self.hits += scheduler.prefix_cache_hits
            self.preemptions += scheduler.num_preemptions
            self.drafts += scheduler.num_drafts
            self.draft_tokens += scheduler.num_draft_tokens
            self.accepted += scheduler.num_accepted_tokens

    @property
    def busy(self) -> bool:
        state = self.latest
        return bool(
            self.prompt_tokens or self.generation_tokens or state.num_running or state.num_waiting
        )


class ConsoleStatLogger(StatLogger):
    """Logs one line of totals per interval and engine. `clock` returns seconds, monotonic."""

    Options = ConsoleOptions

    def __init__(
        self, context: StatLoggerContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(context)
        options = (
            context.options if isinstance(context.options, ConsoleOptions) else ConsoleOptions()
        )
        self.interval_s = options.interval_s
        self._per_engine = options.per_engine
        self._clock = clock
        self._since = clock()
        self._windows: dict[int, _Window] = {}
        self._rejections: dict[str, int] = {}

    def record(self, record: StatRecord) -> None:
        window = self._windows.get(record.engine_index)
        if window is None:
            window = self._windows[record.engine_index] = _Window()
        window.add(record)

    def log_engine_initialized(self, info: EngineInfo) -> None:
        """Loading is not serving: the first line's rates start here. Engines that are gone are forgotten."""
        if not self._windows:
            self._since = self._clock()
        self._windows = {
            index: self._windows.get(index) or _Window() for index in info.engine_indexes
        }

    def record_rejection(self, reason: str) -> None:
        self._rejections[reason] = self._rejections.get(reason, 0) + 1

    def record_sleep_state(self, sleeping: bool, level: int) -> None:
        if sleeping:
            logger.info("engines asleep (level %d)", level)
        else:
            logger.info("engines awake")

    def log(self) -> None:
        """Write the line (or one per busy engine) and start the next interval."""
        now = self._clock()
        elapsed = max(now - self._since, 1e-3)
        self._since = now
        rejected = [_rejected(self._rejections)] if self._rejections else []
        busy = {index: window for index, window in sorted(self._windows.items()) if window.busy}
        if self._per_engine and len(self._windows) > 1:
            for index, window in busy.items():
                logger.info("engine %d: %s", index, describe((window,), elapsed))
            for line in rejected:
                logger.info("%s", line)
        elif busy or rejected:
            parts = []
            if self._windows:
                parts.append(describe(self._windows.values(), elapsed))
            logger.info("%s", ", ".join(parts + rejected))
        self._rejections = {}
        for window in self._windows.values():
            window.restart()


def describe(windows: Iterable[_Window], elapsed: float) -> str:
    """Put the numbers of `elapsed` seconds into words; of several engines, sums of counts, means of shares."""
    chosen = list(windows)
    states = [window.latest for window in chosen]
    prompt_tokens = sum(window.prompt_tokens for window in chosen)
    generation_tokens = sum(window.generation_tokens for window in chosen)
    queries = sum(window.queries for window in chosen)
    hits = sum(window.hits for window in chosen)
    preemptions = sum(window.preemptions for window in chosen)
    drafts = sum(window.drafts for window in chosen)
    draft_tokens = sum(window.draft_tokens for window in chosen)
    usage = sum(state.kv_cache_usage for state in states)
    parts = [
        f"prompt {_rate(prompt_tokens / elapsed)} tok/s",
        f"generation {_rate(generation_tokens / elapsed)} tok/s",
        f"running {sum(state.num_running for state in states)}",
        f"waiting {sum(state.num_waiting for state in states)}",
        f"KV cache {_percent(usage / len(states))}",
    ]
    if queries:
        parts.append(f"prefix cache hits {_percent(hits / queries)}")
    if preemptions:
        parts.append(f"preempted {preemptions}")
    if drafts and draft_tokens:
        accepted = sum(window.accepted for window in chosen)
        # Tokens per pass of a drafted row: its own, and the accepted ones.
        length = 1 + accepted / drafts
        parts.append(f"draft tokens accepted {_percent(accepted / draft_tokens)}")
        parts.append(f"mean acceptance length {length:.2f}")
    return ", ".join(parts + _extras(state.extra for state in states))


def _extras(extras: Iterable[Mapping[str, float]]) -> list[str]:
    """Show a scheduler author's own numbers by name; the mean of those engines that report one."""
    values: dict[str, list[float]] = {}
    for extra in extras:
        for name, value in extra.items():
            values.setdefault(name, []).append(value)
    parts = []
    for name, reported in sorted(values.items()):
        mean = sum(reported) / len(reported)
        parts.append(f"{name} {mean:.4g}")
    if len(parts) <= MAX_EXTRAS:
        return parts
    left_out = len(parts) - MAX_EXTRAS
    return [*parts[:MAX_EXTRAS], f"and {left_out} more"]


def _rejected(rejections: Mapping[str, int]) -> str:
    reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(rejections.items()))
    return f"rejected {sum(rejections.values())} ({reasons})"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
