"""Sampled tokens on all ranks of a tensor-parallel group. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from tenonry_torch_base.sampler.sampler import Sampled

if TYPE_CHECKING:
    from tenonry_torch_base.parallel.groups import TensorGroup
    from tenonry_torch_base.sampler.processors import SampleStep


class RowSampler(Protocol):
    """Chooses a token for each sampling row by its logits."""

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled: ...


class SharedSampler:
    """Samples on the group's first rank for every rank, so that their tokens cannot differ."""

    def __init__(self, sampler: RowSampler, group: TensorGroup, device: torch.device) -> None:
        self._sampler = sampler
        self._group = group
        self._device = device

    def sample(self, logits: torch.Tensor, step: SampleStep) -> Sampled:
        both = torch.empty(2, len(step.row), dtype=torch.long, device=self._device)
        sampled: Sampled | None = None
        if self._group.rank == 0:
            sampled = self._sampler.sample(logits, step)
            torch.stack([sampled.token_ids, sampled.failure.long()], out=both)
        self._group.broadcast(both)
        if sampled is not None:
            return sampled
        token_ids, failure = both
        return Sampled(token_ids, failure.to(torch.int32))
