"""Common part of the workers of this package: a model runner, its steps, its profile, its end. Runs in the process the
executor chose. This module is light; torch is imported by `load`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenonry.interfaces.worker import Worker
from tenonry_torch_base.waiting import wait_briefly

if TYPE_CHECKING:
    from tenonry.interfaces.worker import WorkerContext
    from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
    from tenonry_torch_base.options import ProfileOptions
    from tenonry_torch_base.traces import RankProfile
    from tenonry_worker_torch.connector import ConnectedSteps
    from tenonry_worker_torch.runner.runner import ModelRunner


class RunnerWorker(Worker):
    """A worker around a model runner. Subclasses load a model, and set the runner in `initialize_cache`.

    `resolved`: names of the resolved extension points.
    """

    options: ProfileOptions

    def __init__(self, context: WorkerContext) -> None:
        super().__init__(context)
        wait_briefly(context.model.path)
        self.resolved: dict[str, str] = {}
        self._profile: RankProfile | None = None
        self._runner: ModelRunner | None = None
        self._steps: ModelRunner | ConnectedSteps | None = None

    @property
    def runner(self) -> ModelRunner:
        """The model runner; exists from `initialize_cache` on."""
        if self._runner is None:
            raise RuntimeError("the worker has no model runner: initialize_cache() comes first")
        return self._runner

    def run_steps(self, runner: ModelRunner, steps: ConnectedSteps | None = None) -> None:
        """Execute steps with a runner, or with `steps` around it."""
        self._runner = runner
        self._steps = steps or runner

    def execute_model(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        steps = self._steps or self.runner
        return steps.execute(output)

    def profile(self, is_start: bool = True) -> None:
        """Start a profile of this rank, or stop and write it. Raises ConfigError without the option profile_dir."""
        from tenonry_torch_base.traces import RankProfile

        if self._profile is None:
            self._profile = RankProfile(self.options, self.context.rank, self.context.engine_index)
        if is_start:
            self._profile.start()
        else:
            self._profile.stop()

    def resolved_plugins(self) -> dict[str, str]:
        return dict(self.resolved)

    def shutdown(self) -> None:
        if self._profile is not None:
            self._profile.end()
        if self._steps is not None:
            self._steps.shutdown()
        self._steps = self._runner = None
