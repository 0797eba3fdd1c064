"""Runner feature `hidden-peaks`: largest hidden state behind any sampled token. Worker process."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from tenonry.interfaces.plugin import PluginOptions
from tenonry_worker_torch.runner.feature import RunnerFeature

if TYPE_CHECKING:
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.step import Step

logger = logging.getLogger("tenonry.hidden_peaks")


class HiddenPeaksOptions(PluginOptions):
    """Options of the runner feature `hidden-peaks`."""

    above: float = Field(default=0.0, ge=0, description="Values up to this one are not logged.")


class HiddenPeaks(RunnerFeature):
    """Logs each new maximum of the absolute hidden states."""

    interface_version = 1
    name: ClassVar[str] = "hidden-peaks"
    Options = HiddenPeaksOptions
    needs_hidden: ClassVar[bool] = True

    @classmethod
    def is_active(cls, context: RunnerContext) -> bool:
        parallel = context.model.parallel
        return parallel.link.is_last and parallel.tensor.rank == 0

    def __init__(self, context: RunnerContext) -> None:
        super().__init__(context)
        self.largest: float = self.options.above

    def after(self, step: Step) -> None:
        rows, lines = step.accepted()
        if len(rows) and step.hidden is not None:
            largest = float(step.hidden[lines].float().abs().max())
            if largest > self.largest:
                self.largest = largest
                logger.info("largest hidden state: %g", largest)
