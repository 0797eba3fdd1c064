"""Hidden states of a padded batch → one vector per prompt. Worker process.

Each maps states [N, L, D], a mask of tokens bool[N, L], and lengths i64[N] to f32[N, D], like sentence-transformers'
Pooling; sums are in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def first(states: torch.Tensor, _mask: torch.Tensor, _lengths: torch.Tensor) -> torch.Tensor:
    """The state of the first token."""
    return states[:, 0].float()


def last(states: torch.Tensor, _mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The state of the last token."""
    rows = torch.arange(len(states), device=states.device)
    return states[rows, lengths - 1].float()


def greatest(states: torch.Tensor, mask: torch.Tensor, _lengths: torch.Tensor) -> torch.Tensor:
    """The greatest of each number over all tokens."""
    return states.float().masked_fill(~mask[:, :, None], float("-inf")).amax(1)


def total(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Sum of the tokens' states. A state of padding may be anything, also not a number."""
    return states.float().masked_fill(~mask[:, :, None], 0).sum(1)


def mean(states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The mean over all tokens."""
    return total(states, mask) / lengths[:, None]


def mean_by_root(states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The sum over all tokens, over the root of their count."""
    return total(states, mask) / lengths[:, None].sqrt()


def mean_by_place(states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The first token counts once, the second twice, and so on."""
    places = torch.arange(1, states.shape[1] + 1, device=states.device)
    weights = lengths * (lengths + 1) / 2
    return total(states.float() * places[None, :, None], mask) / weights[:, None]


POOLED: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cls": first,
    "max": greatest,
    "mean": mean,
    "mean_sqrt_len_tokens": mean_by_root,
    "weightedmean": mean_by_place,
    "lasttoken": last,
}


def pool(
    modes: Sequence[str], states: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """f32[N, D · modes]: concatenated vectors of all modes."""
    return torch.cat([POOLED[mode](states, mask, lengths) for mode in modes], -1)
