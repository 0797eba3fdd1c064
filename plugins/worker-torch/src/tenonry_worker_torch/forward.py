"""One forward pass over a flattened batch: ids and positions in, logits of the kept positions out. A pipeline stage
reads and returns hidden states if it is not the first or the last. Worker process.

`ModuleForward` calls the unmodified transformers model. `tenonry_worker_torch.fuse.decoder` has the fused one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from tenonry_torch_base.parallel.stage import stage_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_torch_base.attention.layer import StepPlan
    from tenonry_torch_base.parallel.groups import Link


class StepLengths:
    """Sequence lengths i64[T] of the tokens of the current step; None while a prompt runs alone."""

    __slots__ = ("of_tokens",)

    def __init__(self) -> None:
        self.of_tokens: torch.Tensor | None = None


class ForwardPlans:
    """The attention plans of a step: `full` for every layer, `last` for the last one if only kept rows continue there.

    `lengths` i64[T]: sequence length of each token, if rotary tables depend on it.
    """

    __slots__ = ("full", "last", "lengths")

    def __init__(self, full: Any, last: Any = None, lengths: torch.Tensor | None = None) -> None:
        self.full = full
        self.last = last
        self.lengths = lengths


class Forward(Protocol):
    """A forward pass called by the model runner."""

    can_prune: bool

    def __call__(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        """`inputs`, `positions` i64[T] → logits [S, vocabulary] of the tokens `keep` i64[S], in that order.

        None keeps every token. The K/V of all T tokens are written. `inputs` are token ids, or embeddings [T, hidden]
        if a prompt holds images (`positions` then may be i64[3, T]), or, after the first pipeline stage, hidden states
        [T, hidden]; a stage that is not the last returns those of all tokens.
        """
        ...


class ModuleForward:
    """The model's own `forward`; only attention and the logits to keep are ours."""

    can_prune = False

    def __init__(
        self, model: PreTrainedModel, step: StepPlan, lengths: StepLengths | None = None
    ) -> None:
        """`lengths`: inputs of the rotary modules, if their tables depend on the sequence length."""
        self.model = model
        self.step = step
        self.stage = stage_of(model)
        self.lengths = lengths

    def __call__(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        self.step.plan = plans.full
        self.step.forward_passes += 1
        if self.lengths is None:
            return self.stage(self.model, inputs, positions, keep)
        self.lengths.of_tokens = plans.lengths
        try:
            return self.stage(self.model, inputs, positions, keep)
        finally:
            self.lengths.of_tokens = None


class StageForward:
    """Forward pass of a pipeline stage: hidden states of the previous stage in, and on to the next one."""

    def __init__(self, forward: Forward, link: Link) -> None:
        self._forward = forward
        self._link = link
        self.can_prune = forward.can_prune

    def __call__(
        self,
        inputs: torch.Tensor,
        positions: torch.Tensor,
        keep: torch.Tensor | None,
        plans: ForwardPlans,
    ) -> torch.Tensor:
        """As `Forward`; `inputs` are token ids on each stage. Logits are empty on stages that are not the last."""
        made = self._forward(self._link.inputs(inputs), positions, keep, plans)
        if self._link.is_last:
            return made
        self._link.send(made)
        return made[:0]
