"""Composition of a runner's passes, chosen once: retries in halves, hidden states, ranks that sample together, drafts.
Worker process.
"""

from __future__ import annotations

from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch

from tenonry_drafters.controller import DraftController
from tenonry_drafters.drafts import Drafts
from tenonry_torch_base.parallel.tokens import SharedSampler
from tenonry_torch_base.results import DeviceFuture
from tenonry_torch_base.verification import Verifier
from tenonry_worker_torch.drafting.rounds import DraftedRounds
from tenonry_worker_torch.runner.feature import Split
from tenonry_worker_torch.runner.forward_pass import ForwardPass
from tenonry_worker_torch.runner.halving import Halving
from tenonry_worker_torch.runner.hidden import HiddenPass
from tenonry_worker_torch.runner.prompt_pass import PromptPass
from tenonry_worker_torch.runner.sampling import (
    DraftSampling,
    FailingSampler,
    NoSampling,
    NoTokens,
    TokenSampling,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tenonry.step import ModelRunnerOutput, SchedulerOutput
    from tenonry_drafters.base import Drafter
    from tenonry_scheduling.columns import BatchState
    from tenonry_torch_base.parallel.tokens import RowSampler
    from tenonry_torch_base.rounds import SeveralPasses
    from tenonry_torch_base.sampler.sampler import Sampler
    from tenonry_worker_torch.runner.feature import RunnerContext
    from tenonry_worker_torch.runner.feature_list import FeatureList
    from tenonry_worker_torch.runner.sampling import Sampling
    from tenonry_worker_torch.runner.step import Step
    from tenonry_worker_torch.runner.step_pass import StepPass


def forward_pass_of(context: RunnerContext, features: FeatureList, dummy_block: int) -> StepPass:
    """The computation of a step: tokens over K/V, or as a model pass has it, or whole prompts of a model that pools."""
    if context.model.pooler is not None:
        return PromptPass(context, features)
    make = context.model.make_pass or ForwardPass
    made: StepPass = make(context, features, dummy_block)
    return made


def compute_of(
    forward_pass: StepPass, state: BatchState, features: FeatureList
) -> Callable[[Step], None]:
    """The forward pass of a step, with hidden states if a feature needs them, and retries in halves where K/V are its
    only state and the rank is alone: other ranks would wait.
    """
    model = forward_pass.model
    compute = HiddenPass(forward_pass, model) if features.needs_hidden else forward_pass
    if features.split is Split.NEVER or not model.parallel.is_alone:
        return compute
    return Halving(state, compute, forward_pass.begin_part, features.split)


def sampling_of(context: RunnerContext, sampler: Sampler) -> Sampling:
    """Return sampling of one token per row, equal on all ranks of a tensor group; none on a stage before the last."""
    device = context.model.device
    parallel = context.model.parallel
    as_answer = (
        partial(DeviceFuture, device=device) if device.type == "cuda" else methodcaller("output")
    )
    if not parallel.link.is_last:
        return NoSampling(as_answer)
    chooser: RowSampler = NoTokens() if context.model.pooler is not None else sampler
    chooser = FailingSampler(chooser, context.failures)
    if parallel.tensor.size > 1:
        chooser = SharedSampler(chooser, parallel.tensor, device)
    return TokenSampling(sampler, chooser, context.state, context.history, as_answer)


def drafted_rounds(
    drafter: Drafter | None,
    max_drafts: int,
    context: RunnerContext,
    sampler: Sampler,
    execute_pass: Callable[..., Any],
    several: SeveralPasses,
) -> DraftedRounds:
    """Return multi-token steps in which `execute_pass` verifies drafts of the first rank's drafter; None on other
    ranks.
    """
    state = context.state
    group = context.model.parallel.tensor

    def share(message: NDArray[np.int64]) -> NDArray[np.int64]:
        shared_ids: NDArray[np.int64] = group.broadcast(torch.from_numpy(message)).numpy()
        return shared_ids

    def verify(output: SchedulerOutput) -> ModelRunnerOutput:
        answer: ModelRunnerOutput = execute_pass(output, sampling)
        return answer

    controller = DraftController(len(state.handle), max_drafts)
    to_all = share if group.size > 1 else None
    drafts = Drafts(drafter, controller, state, context.model.vocab_size, sampler.fitting, to_all)
    rounds = DraftedRounds(state, execute_pass, verify, drafts, several)
    verifier = Verifier(sampler, state, rounds.ends)
    sampling = DraftSampling(verifier, state, group, context.failures)
    return rounds
