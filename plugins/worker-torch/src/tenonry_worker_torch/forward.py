"""One forward pass over a flattened batch: ids and positions in, logits of the kept positions out. Worker process.

`ModuleForward` calls the transformers model as it is. `tenonry_worker_torch.fuse.decoder` has the lean one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from tenonry_worker_torch.attention.layer import StepPlan


class ForwardPlans:
    """The attention plans of a step: `full` for every layer, `last` for the last one if only kept rows go on there."""

    __slots__ = ("full", "last")

    def __init__(self, full: Any, last: Any = None) -> None:
        self.full, self.last = full, last


class Forward(Protocol):
    """What the model runner calls."""

    can_prune: bool

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None, plans: ForwardPlans
    ) -> torch.Tensor:
        """`token_ids`, `positions` i64[T] → logits [S, vocabulary] of the tokens `keep` i64[S], in that order.

        None keeps every token. The K/V of all T tokens are written.
        """
        ...


class ModuleForward:
    """The model's own `forward`; only attention and the logits to keep are ours."""

    can_prune = False

    def __init__(self, model: PreTrainedModel, step: StepPlan) -> None:
        self.model, self.step = model, step

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None, plans: ForwardPlans
    ) -> torch.Tensor:
        self.step.plan = plans.full
        kept = 0 if keep is None else keep  # transformers: 0 means every position
        return self.model(
            input_ids=token_ids[None], position_ids=positions[None], use_cache=False, logits_to_keep=kept
        ).logits[0]
