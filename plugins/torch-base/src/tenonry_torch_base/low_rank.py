"""Kernels for low-rank adapters: parameters and results of `LowRankParts`. Worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class LowRankParts:
    """Low-rank adapters (arXiv:2106.09685) of one linear layer, or of several that read the same input, in slots.

    `down` [slots, inputs, width], and for each layer one of `ups` [slots, rank, outputs] and the column of the merged
    output in which its own `begins`. Layer n has the columns of `down` from n · rank on; width is a multiple of 16, and
    columns that no layer has are zero. All are contiguous and of one type, float32 or bfloat16. Their values change in
    place between calls.
    """

    down: torch.Tensor
    ups: tuple[torch.Tensor, ...]
    begins: tuple[int, ...]


class SlotTokens(NamedTuple):
    """`order` i64[n]: the tokens with an adapter, those of slot 0 first; `ends` i64[slots]: where each slot's end.

    Slots after the last one with tokens are omitted.
    """

    order: torch.Tensor
    ends: torch.Tensor


class LowRankKernel(Protocol):
    """A kernel that adds the adapters of all tokens."""

    def __call__(self, x: torch.Tensor, out: torch.Tensor, tokens: SlotTokens) -> None:
        """Add to `out` [T, …], in place: x [T, inputs] · down[slot] · ups[slot], for each of `tokens`.

        Both have the type of the weights, and neighbours in the last dimension. Tokens without an adapter keep their
        outputs, bit for bit.
        """
        ...
