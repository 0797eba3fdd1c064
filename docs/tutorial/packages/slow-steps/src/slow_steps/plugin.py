"""Executor `slow-steps`: one rank in the engine's process, and a line for each slow step. Engine process."""

from __future__ import annotations

import logging
import time

from pydantic import Field

from tenonry.interfaces.executor import ExecutorContext
from tenonry.interfaces.plugin import PluginOptions
from tenonry.step import SchedulerOutput, StepFuture
from tenonry_executor_uniproc.executor import UniprocExecutor

logger = logging.getLogger("tenonry.slow_steps")


class SlowStepsOptions(PluginOptions):
    """Options of `--executor-option`."""

    longer_than_ms: float = Field(
        default=100, ge=0, description="Duration above which steps are logged."
    )


class SlowSteps(UniprocExecutor):
    """Runs one worker in the engine's process, and logs slow steps."""

    interface_version = 1
    Options = SlowStepsOptions

    def __init__(self, context: ExecutorContext) -> None:
        super().__init__(context)
        options = context.options
        self.options = options if isinstance(options, SlowStepsOptions) else SlowStepsOptions()

    def execute_model(self, output: SchedulerOutput) -> StepFuture:
        began = time.perf_counter()
        future = super().execute_model(output)
        took_ms = 1000 * (time.perf_counter() - began)
        if took_ms > self.options.longer_than_ms:
            logger.info(
                "step %d: %d tokens of %d requests in %.1f ms",
                output.step_id,
                output.total_tokens,
                len(output.row),
                took_ms,
            )
        return future
