"""Parts of a model by which `StepKernels.make` chooses a kernel, in addition to those of whole formulas. Worker
process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tenonry_torch_base.attention_parts import AttentionParts
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.step_kernels import (
        BlockedWeight,
        DeltaRuleParts,
        HalfParts,
        LayerKernel,
    )


@dataclass(frozen=True, slots=True)
class NormParts:
    """X / √(mean(x²) + eps) · weight over the last dimension of a contiguous float32 `x` [N, size]."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class Bfloat16NormParts:
    """The same of a contiguous bfloat16 `x`, in bfloat16; `weight` is in float32."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True, slots=True)
class TurnParts:
    """Norm and rotation of heads by a `TurnKernel`."""

    attention: AttentionParts


@dataclass(frozen=True, slots=True)
class GateParts:
    """Silu(gate) · up of a contiguous bfloat16 [N, 2 · inner], concatenated in each row, → [N, inner]."""


@dataclass(frozen=True, slots=True)
class DeltaRuleHalfParts:
    """As `DeltaRuleParts`, from `hidden` [R, hidden] instead of `projected`: the sum of `hidden` and the part's output
    for its norm, projected by `half.out`, [R, hidden]. The input is not changed. The kernel is a `DeltaRuleKernel`.
    """

    half: HalfParts
    rule: DeltaRuleParts


@dataclass(frozen=True, slots=True)
class AttentionHalfParts:
    """As `AttentionParts`, from `hidden` instead of `projected`; see `DeltaRuleHalfParts`."""

    half: HalfParts
    attention: AttentionParts


@dataclass(frozen=True, slots=True)
class BestAllowedParts:
    """The search by a `BestAllowedKernel`."""


@dataclass(frozen=True, slots=True)
class LinearParts:
    """A linear layer by a `LinearKernel`."""

    weight: BlockedWeight


@dataclass(frozen=True, slots=True)
class LowBitParts:
    """A linear layer by a `LowBitKernel`."""

    weight: LowBitWeight


@dataclass(frozen=True, slots=True)
class LowBitRowsParts:
    """Function that dequantises rows i64[N] of a weight, or all for None, into [N, inputs] of a data type.

    A row that the weight does not have is NaN.
    """

    weight: LowBitWeight
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class PagedAttentionParts:
    """Attention by a `PagedKernel`. Parts that apply before the keys are written are ignored."""

    attention: AttentionParts


@dataclass(frozen=True, slots=True)
class ChunkAttentionParts:
    """Attention by a `ChunkKernel`. Parts as for `PagedAttentionParts`."""

    attention: AttentionParts


@dataclass(frozen=True, slots=True)
class StackParts:
    """Chain of kernels made from `LayerParts`, in a `StackKernel`."""

    layers: Sequence[LayerKernel]


@dataclass(frozen=True, slots=True)
class PromptParts:
    """Chain of kernels made from `LayerParts`, in a `PromptKernel`."""

    layers: Sequence[LayerKernel]
