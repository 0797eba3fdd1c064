"""Placeholder for transformers' cache in a forward pass, for models that need more of it than keys and values. Worker
process.

Keys and values go to attention as the step made them, and past ones come from the blocks. But Llama 4 queries its cache
for the number of tokens seen, and counts the positions of a prompt on from there, where others use the positions passed
to them: in a flattened batch each token has its own answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

# Attributes of modules that scale queries by positions counted from the length of the cache.
COUNTING = ("attn_temperature_tuning",)


class StepCache:
    """Stateless cache of one forward pass. `positions` i64[T]: positions of the pass."""

    is_compileable = False

    def __init__(self) -> None:
        self.positions: torch.Tensor | None = None

    def get_seq_length(self, layer_idx: int = 0) -> torch.Tensor | int:
        """Offset from 0, 1, 2, ... to the positions of the pass: i64[T]."""
        if self.positions is None:
            return 0
        count = len(self.positions)
        return self.positions - torch.arange(count, device=self.positions.device)

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0: masks are made as without a cache; block tables determine the visible keys."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Number of keys, and their offset."""
        return query_length, 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values as the step made them: attention writes them into the blocks."""
        return key, value


def step_cache_for(model: nn.Module) -> StepCache | None:
    """Return a cache for models that need one; None for others."""
    needs_one = any(getattr(module, name, False) for module in model.modules() for name in COUNTING)
    return StepCache() if needs_one else None
