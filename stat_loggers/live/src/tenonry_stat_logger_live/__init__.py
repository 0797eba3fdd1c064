"""The stat logger `live`: the view of `tenonry top` for `LLM` and `AsyncLLM`, without a server. Runs on the observer
thread of one process; writes to standard error.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TextIO

from pydantic import Field

from tenonry.info import EngineInfo
from tenonry.interfaces.plugin import PluginOptions
from tenonry.interfaces.stat_logger import StatLogger, StatLoggerContext
from tenonry.stats import SchedulerStats, StatRecord
from tenonry_commands.screen import screen

PERCENTS = (50, 90, 99)
CLEAR_LINE = "\r\x1b[K"  # of a progress bar
LATENCIES = ("TTFT", "ITL", "end to end", "queue")


class LiveOptions(PluginOptions):
    """Options of the live stat logger."""

    interval_s: float = Field(2.0, gt=0, le=3600, description="Seconds between two views.")


class LiveStatLogger(StatLogger):
    """Writes a view per interval with work. `clock`: seconds, monotonic."""

    Options = LiveOptions

    def __init__(
        self,
        context: StatLoggerContext,
        clock: Callable[[], float] = time.monotonic,
        output: TextIO | None = None,
    ) -> None:
        super().__init__(context)
        options = context.options if isinstance(context.options, LiveOptions) else LiveOptions()
        self.interval_s, self._clock, self._output = options.interval_s, clock, output
        self._states: dict[int, SchedulerStats] = {}
        self._plugins: list[str] = []
        self._model, self._preemptions = context.config.model, 0
        self._restart()

    def _restart(self) -> None:
        self._since = self._clock()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._latencies: dict[str, list[float]] = {name: [] for name in LATENCIES}

    def log_engine_initialized(self, info: EngineInfo) -> None:
        self._model = info.served_model_name
        shown = (f"{each.kind} {each.name} {each.version}".rstrip() for each in info.plugins)
        self._plugins = sorted({*shown})
        self._states = {}
        self._restart()

    def record(self, record: StatRecord) -> None:
        if (state := record.scheduler) is not None:
            self._states[record.engine_index] = state
            self._preemptions += state.num_preemptions
            self._counts["queries"] += state.prefix_cache_queries
            self._counts["hits"] += state.prefix_cache_hits
        if (iteration := record.iteration) is not None:
            self._counts["prompt"] += iteration.num_prompt_tokens
            self._counts["output"] += iteration.num_generation_tokens
            self._counts["requests"] += len(iteration.finished)
            self._latencies["TTFT"] += iteration.ttft_s
            self._latencies["ITL"] += iteration.inter_token_latency_s
            self._latencies["end to end"] += [each.e2e_latency_s for each in iteration.finished]
            self._latencies["queue"] += [each.queued_s for each in iteration.finished]

    def log(self) -> None:
        states, counts = self._states.values(), self._counts
        if any(counts.values()) or any(each.num_running or each.num_waiting for each in states):
            seconds = max(self._clock() - self._since, 1e-3)
            usages = [each.kv_cache_usage for each in states]
            latencies = {name: percentiles(each) for name, each in self._latencies.items()}
            view = {
                "model": self._model,
                "running": sum(each.num_running for each in states),
                "waiting": sum(each.num_waiting for each in states),
                "prompt_tokens_per_s": counts["prompt"] / seconds,
                "output_tokens_per_s": counts["output"] / seconds,
                "requests_per_s": counts["requests"] / seconds,
                "kv_cache_usage": sum(usages) / len(usages) if usages else None,
                "prefix_cache_hits": share(counts["hits"], counts["queries"]),
                "preemptions": self._preemptions,
                "latency_s": latencies,
                "plugins": self._plugins,
            }
            self._write(screen(f"last {seconds:.1f} s", view))
        self._restart()

    def _write(self, text: str) -> None:
        output = self._output or sys.stderr  # that of now: programs and tests replace it
        output.write(CLEAR_LINE + text if output.isatty() else text)
        output.flush()


def share(part: int, whole: int) -> float | None:
    """Part of a whole; None of nothing."""
    return part / whole if whole else None


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Percentiles of what was observed, by name; None without observations."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {f"p{each}": ordered[round(last * each / 100)] if ordered else None for each in PERCENTS}
