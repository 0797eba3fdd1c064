"""Parameters of attention kernels, for decoding steps and for batch invariance. Worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionParts:
    """Attention between the projections of its layer, over all keys of a row. All tensors are float32, contiguous.

    A projected row holds `heads` queries, `kv_heads` keys and as many values of `size` elements each; with `is_gated`,
    each query is followed by a gate of its output. A key head serves heads / kv_heads query heads, which are
    neighbours. `norm_weight` [heads + kv_heads, size]: of queries and keys, before rotation; None without a norm.
    `window`: number of a row's last tokens that are visible, 0 for all; nonzero for kernels over `PagedKeys` only.
    """

    heads: int
    kv_heads: int
    size: int
    is_gated: bool
    norm_weight: torch.Tensor | None
    norm_eps: float
    scaling: float  # of the scores
    window: int = 0

    @property
    def columns(self) -> int:
        queries = 2 * self.heads if self.is_gated else self.heads
        return (queries + 2 * self.kv_heads) * self.size


class TurnKernel(Protocol):
    """Norm and rotation of the queries and keys of N tokens, in place; values stay. No head has a gate."""

    def __call__(self, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """`projected` [N, columns], `cos`, `sin` [N, 1, rotated], contiguous, in bfloat16; computed in float32.

        A head is rotated as an `AttentionKernel` does it.
        """
        ...
