"""Batch-invariant kernels, with bitwise equal results of a token in any batch: parameters and contract, a part of the
extension point `tenonry.step_kernels`. Worker process.

Weights, and K/V in their blocks, are in float32 or bfloat16, everything else in float32. A kernel is independent of the
number of rows, and the order of additions is independent of the division among threads. Its results may differ from
those of another implementation, or of another processor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from tenonry_torch_base.attention_parts import AttentionParts
    from tenonry_torch_base.low_rank import LowRankKernel


class StepKeys(NamedTuple):
    """Destination of the keys and values of a step's T tokens, and tokens visible to its Q queries. All are contiguous.

    `blocks` [N, 2 · kv_heads, block_size, size], in float32 or bfloat16, keys before values; `slots` i64[T] is block ·
    block_size + place of each token. Query q is at `positions` i64[Q] of its sequence. Queries of one sequence are
    neighbours, in order of their positions; group g is `counts` i64[G] of them from `begins` i64[G] on, and its
    sequence has token t in place t % block_size of the block `table`[`lines`[g], t // block_size], i32[R, width]. A
    query attends to tokens up to its own. Later slots are undefined, and may be NaN; table entries outside its view may
    be anything.
    """

    blocks: torch.Tensor
    slots: torch.Tensor
    table: torch.Tensor
    positions: torch.Tensor
    begins: torch.Tensor
    counts: torch.Tensor
    lines: torch.Tensor


class InvariantLinear(Protocol):
    """A linear layer, of any number of rows."""

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """Compute `x` f32[N, inputs] → f32[N, outputs], plus `other` of that shape if passed; all contiguous."""
        ...

    def weight(self) -> torch.Tensor:
        """Return the original numbers [outputs, inputs], in a separate tensor."""
        ...


class InvariantNorm(Protocol):
    """As `NormParts`."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`x` f32[N, size], contiguous → the same shape."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class InvariantLayerParts:
    """A decoder layer of the Llama kind without an attention gate; linear layers are of the same implementation.

    hidden + out(attention(projection(norm(hidden)))), and of that x + down(silu(gate) · up) with gate and up one behind
    the other in gate_up(second norm(x)). `attention.window` bounds the view of a query.
    """

    attention: AttentionParts
    norm_weight: torch.Tensor
    norm_eps: float
    projection: InvariantLinear
    out: InvariantLinear
    second_norm_weight: torch.Tensor
    second_norm_eps: float
    gate_up: InvariantLinear
    down: InvariantLinear


class LayerAdapters(NamedTuple):
    """Low-rank adapters of a layer's linear layers: kernels of the same implementation, None without an adapter. Each
    adds to the output of its linear layer, before its next use; in the projection, to concatenated queries, keys and
    values.

    `slots` i32[T]: the slot of each token, −1 for those without an adapter; `query_slots` i32[Q]: of the queries.
    """

    projection: LowRankKernel | None
    out: LowRankKernel | None
    gate_up: LowRankKernel | None
    down: LowRankKernel | None
    slots: torch.Tensor
    query_slots: torch.Tensor


class InvariantLayer(Protocol):
    """A layer over T tokens, Q of which are queries of the next layer."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: StepKeys,
        tokens: torch.Tensor | None = None,
        adapters: LayerAdapters | None = None,
    ) -> torch.Tensor:
        """`hidden` [T, hidden], which stays, → [Q, hidden]; `cos`, `sin` [T, 1, rotated]; all contiguous.

        `tokens` i64[Q]: indices of the queries; None if all tokens are, in order. Queries and keys are normed and
        rotated as in an `AttentionKernel`. Keys and values of all T tokens are written before a query reads any. The
        contribution of `adapters` to a token depends on its own slot alone, not on other slots or tokens.
        """
        ...


class InvariantKernels(ABC):
    """Result of `StepKernels.invariant`: a kernel for each part, made from its weights in float32 or bfloat16."""

    @abstractmethod
    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None) -> InvariantLinear:
        """Make a layer of `weight` [outputs, inputs] and `bias` [outputs], neither of which is kept."""

    @abstractmethod
    def norm(self, weight: torch.Tensor, eps: float) -> InvariantNorm:
        """`weight` [size]."""

    @abstractmethod
    def layer(self, parts: InvariantLayerParts) -> InvariantLayer | None:
        """Make a layer; None without a kernel for these shapes."""
