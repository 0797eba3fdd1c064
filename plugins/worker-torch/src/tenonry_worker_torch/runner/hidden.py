"""Hidden states of a pass, for features that need them. Worker process.

They are taken after the norm behind the last layer: the inputs of the output layer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tenonry_worker_torch.fuse.decoder import FusedForward, FusedHead

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from tenonry_worker_torch.loaded_model import LoadedModel
    from tenonry_worker_torch.runner.step import Step


class WatchedHead(FusedHead):
    """A FusedHead that passes on its input."""

    __slots__ = ("_seen",)

    def __init__(self, head: FusedHead, seen: Callable[[torch.Tensor], None]) -> None:
        super().__init__(head.norm, head.head, head.softcap)
        self._seen = seen

    def logits(self, normed: torch.Tensor) -> torch.Tensor:
        self._seen(normed)
        return super().logits(normed)


class HiddenPass:
    """A forward pass that sets `Step.hidden`."""

    def __init__(self, forward_pass: Callable[[Step], None], model: LoadedModel) -> None:
        """Observe the output layer of the model, fused or its own. A stage without one has no hidden states."""
        self._pass = forward_pass
        self._found: torch.Tensor | None = None
        forward = model.forward
        if isinstance(forward, FusedForward):
            if isinstance(forward.end, FusedHead):
                forward.end = WatchedHead(forward.end, self._see)
            return
        head: nn.Module | None = model.module.get_output_embeddings()
        if head is not None:
            head.register_forward_pre_hook(self._see_inputs)

    def __call__(self, step: Step) -> None:
        self._found = None
        self._pass(step)
        step.hidden = self._of_sampling(step)

    def _of_sampling(self, step: Step) -> torch.Tensor | None:
        """Hidden states of the tokens of `Step.logits`; some models multiply all tokens, and select afterwards."""
        hidden = self._found
        kept = step.kept
        if hidden is not None and kept is not None and len(hidden) > len(kept):
            hidden = hidden[torch.from_numpy(kept).to(hidden.device)]
        return None if hidden is None else hidden[: len(step.logits)]

    def _see(self, hidden: torch.Tensor) -> None:
        self._found = hidden

    def _see_inputs(self, module: nn.Module, given: tuple[Any, ...]) -> None:
        self._found = given[0].reshape(-1, given[0].shape[-1])
