"""Runs the model step by step: rows, inputs, the forward pass, sampling, and features around them. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry.step import DoneFuture
from tenonry_torch_base.profiling import scoped
from tenonry_torch_base.results import DeviceFuture
from tenonry_torch_base.rounds import Rounds
from tenonry_worker_torch.runner.drivers import compute_of, drafted_rounds, sampling_of
from tenonry_worker_torch.runner.kernel_passes import KernelPasses
from tenonry_worker_torch.runner.row_changes import RowChanges
from tenonry_worker_torch.runner.step import Step

if TYPE_CHECKING:
    from tenonry.step import ModelRunnerOutput, SchedulerOutput, StepFuture
    from tenonry_drafters.base import Drafter
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.kv_memory import KVMemory
    from tenonry_worker_torch.runner.sampling import Sampling
    from tenonry_worker_torch.runner.step_pass import StepPass


class ModelRunner:
    """The columns of all running rows, and one step after another over them."""

    model: LoadedModel

    def __init__(
        self,
        context: RunnerContext,
        features: FeatureList,
        forward_pass: StepPass,
        sampler: Sampler,
        memory: KVMemory,
    ) -> None:
        self.state = context.state
        self.history = context.history
        self.features = features
        self.forward_pass = forward_pass
        self.sampler = sampler
        self.memory = memory
        self.sampling = sampling_of(context, sampler)
        self._context = context
        forward_pass.sample_with(sampler)
        self._rows = RowChanges(self.state, forward_pass, sampler, features)
        self._several = KernelPasses(forward_pass, self.state, sampler, features, self._rows)
        self.rounds = Rounds(self.state, self.execute_pass, self._several)
        self.adopt(context.model)
        self.allocate()

    def draft(self, drafter: Drafter | None, max_drafts: int) -> None:
        """Verify a drafter's tokens in multi-token steps; None on a rank that receives drafts of another."""
        self.rounds = drafted_rounds(
            drafter, max_drafts, self._context, self.sampler, self.execute_pass, self._several
        )

    @scoped("tenonry: step")
    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput | StepFuture:
        """One step. On the CPU the result is returned; on another device, a future of it."""
        return self.rounds.run(output) if output.round_tokens > 1 else self.execute_pass(output)

    @torch.inference_mode()
    def execute_pass(
        self, output: SchedulerOutput, sampling: Sampling | None = None
    ) -> ModelRunnerOutput | StepFuture:
        """Run a step, or a pass of a multi-token step; `sampling` replaces that of one token per row."""
        sampling = sampling or self.sampling
        prepared = self.sampler.compile(output)
        inputs = self._rows.apply(output, self.rounds)
        buffers = self.model.buffers
        step = Step(output, inputs, buffers, verifies=sampling.verifies)
        step.prepared = prepared
        if len(output.row):
            buffers.begin_step()
            step.token_ids = step.model_inputs = self.history.inputs(output, inputs, buffers)
            sampling.begin(step)
            self._compute(step)
            for before_sampling in self.features.before_sampling:
                before_sampling(step)
            sampling.sample(step)
            for after in self.features.after:
                after(step)
        return sampling.answer(step)

    def answer(self, output: SchedulerOutput) -> StepFuture:
        """As `execute`, always as a future."""
        result = self.execute(output)
        return result if isinstance(result, DeviceFuture) else DoneFuture(result)  # type: ignore[arg-type]

    def allocate(self) -> None:
        """Allocate the KV cache, and the features' memory by row."""
        self.memory.allocate(self.model)
        for allocate in self.features.allocate:
            allocate()

    def release(self) -> None:
        """Release that memory; no step until `allocate`."""
        self.forward_pass.release()
        self.memory.release(self.model)
        for release in self.features.release:
            release()

    def forget_model(self) -> None:
        """Drop the model; `adopt` sets another, and no step runs before."""
        self.model = self._context.model = None  # type: ignore[assignment]
        self._compute = None  # type: ignore[assignment]
        self.forward_pass.forget_model()

    def adopt(self, model: LoadedModel) -> None:
        """Compute with this model from now on; `allocate` follows. A later one has the same shapes."""
        self.model = self._context.model = model
        self.forward_pass.adopt(model)
        self._compute = compute_of(self.forward_pass, self.state, self.features)
        for adopt in self.features.adopt:
            adopt()

    def shutdown(self) -> None:
        """Release threads and other resources of sampler and features."""
        self.sampler.shutdown()
        for shutdown in self.features.shutdown:
            shutdown()
