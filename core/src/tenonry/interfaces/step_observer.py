"""Step observers: classes of the entry-point group `tenonry.step_observers`. Engine process, called by its loop.

Every installed one follows the steps of each engine, next to the scheduler and independent of it. The validator of
`tenonry-scheduling` is one; a recorder of steps or a watch over the batch is another.
"""

from __future__ import annotations

from tenonry.config import EngineConfig
from tenonry.interfaces.plugin import Plugin
from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.step import ModelRunnerOutput, NewRow, SchedulerOutput


class StepObserver(Plugin[SchedulerContext]):
    """Follows the requests and steps of one engine. `context`: a copy of the scheduler's.

    Contract:
    - It changes nothing that it receives, and takes microseconds: the loop waits for it.
    - Any exception ends the engine: ContractViolation names the scheduler, any other exception the observer.
    - `scheduled` comes once per step, in step order, before its `answered`. With ranks in other processes it comes when
      the step was sent, while they compute.
    - A step that workers never receive, because it is empty, or that failed in one has no `answered`.
    """

    @classmethod
    def observes(cls, config: EngineConfig) -> bool:
        """Return False if unused with this configuration."""
        return True

    def added(self, request: NewRow) -> None:
        """Record a runnable request, as `Request.new_row` made it before the scheduler received it."""

    def ended(self, handle: int) -> None:
        """Record the end or abort of this request."""

    def scheduled(self, output: SchedulerOutput) -> None:
        """Record a scheduled step."""

    def answered(self, result: ModelRunnerOutput) -> None:
        """Record the result of a step, after the scheduler received it."""

    def shutdown(self) -> None:
        """Release resources; called once, also after a fault and after a start that failed later."""
