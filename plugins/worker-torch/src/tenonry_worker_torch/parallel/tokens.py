"""Sampled tokens on all ranks of a tensor-parallel group. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.sampler.sampler import Sampled

if TYPE_CHECKING:
    from tenonry_worker_torch.parallel.groups import TensorGroup


def shared(
    sampled: Sampled | None, count: int, group: TensorGroup, device: torch.device
) -> Sampled:
    """Samples of the group's first rank, on every rank: they can never use different tokens."""
    both = torch.empty(2, count, dtype=torch.long, device=device)
    if sampled is not None:
        columns = [sampled.token_ids, sampled.failure.long()]
        torch.stack(columns, out=both)
    group.broadcast(both)
    if sampled is not None:
        return sampled
    token_ids, failure = both
    return Sampled(token_ids, failure.to(torch.int32))
