"""Step observer `batch-sizes`: shares of steps by number of requests. Engine process, called by its loop."""

from __future__ import annotations

import logging
from collections import Counter

from tenonry.config import EngineConfig, setting
from tenonry.interfaces.plugin import PluginSettings
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.interfaces.step_observer import StepObserver
from tenonry.step import SchedulerOutput

logger = logging.getLogger("tenonry.batch_sizes")


class BatchSizesSettings(PluginSettings):
    """Settings of this observer: every installed observer runs, so it does nothing by default."""

    batch_sizes_every: int = setting(0, ge=0)
    """Steps between two reports of batch sizes. 0 disables them."""


class BatchSizes(StepObserver):
    """Counts steps by requests: 1–1, 2–3, 4–7, 8–15 and so on."""

    interface_version = 1
    Settings = BatchSizesSettings

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        self.every = context.config.section(BatchSizesSettings).batch_sizes_every
        self.steps: Counter[int] = Counter()

    @classmethod
    def observes(cls, config: EngineConfig) -> bool:
        return config.section(BatchSizesSettings).batch_sizes_every > 0

    def scheduled(self, output: SchedulerOutput) -> None:
        if len(output.row):
            self.steps[len(output.row).bit_length()] += 1
        if self.steps.total() == self.every:
            self.report()

    def report(self) -> None:
        """Log the shares of steps since the last report."""
        total = self.steps.total()
        shares = [
            f"{1 << bits >> 1}–{(1 << bits) - 1}: {count / total:.0%}"
            for bits, count in sorted(self.steps.items())
        ]
        logger.info("requests per step, %d steps: %s", total, ", ".join(shares))
        self.steps.clear()

    def shutdown(self) -> None:
        if self.steps:
            self.report()
