"""The kernels as a plugin of the point `tenonry.step_kernels`. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from tenonry_kernels_cpu.attention import Attention
from tenonry_kernels_cpu.best_allowed import BestAllowed
from tenonry_kernels_cpu.between import Gate, HalfNorm, TurnHeads
from tenonry_kernels_cpu.blocked import BlockedLinear, FewBitsLinear
from tenonry_kernels_cpu.delta_rule import DeltaRule
from tenonry_kernels_cpu.experts import Experts
from tenonry_kernels_cpu.half import AttentionHalf, DeltaRuleHalf
from tenonry_kernels_cpu.invariant import Invariant
from tenonry_kernels_cpu.layer import (
    MAX_SIZE,
    ChunkAttention,
    Layer,
    PagedAttention,
    Stack,
    can_attend,
    can_compute,
    can_multiply,
)
from tenonry_kernels_cpu.library import LibraryError, function, instruction_sets, library
from tenonry_kernels_cpu.low_rank import LowRank
from tenonry_kernels_cpu.prompts import Prompts
from tenonry_kernels_cpu.rounds import Rounds
from tenonry_kernels_cpu.stored import FewBitsRows, laid_out
from tenonry_torch_base.step_kernels import StepKernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenonry_torch_base.few_bits import FewBitsWeight
    from tenonry_torch_base.low_rank import LowRankParts
    from tenonry_torch_base.quantisations import StoredBlocks
    from tenonry_torch_base.step_kernels import (
        AttentionParts,
        BlockedWeight,
        DeltaRuleParts,
        ExpertParts,
        HalfParts,
        LayerKernel,
        LayerParts,
        RoundParts,
    )

MAX_COPIED = 1 << 20  # weights of one layer, of which kernels hold a second copy


class CpuKernels(StepKernels):
    """Kernels in C, for the best instruction set of the processor."""

    name: ClassVar[str] = "cpu"
    kept: ClassVar[frozenset[str]] = frozenset({"int8"})

    @classmethod
    def refusal(cls) -> str | None:
        try:
            library()
        except LibraryError as error:
            return str(error)
        return None

    def __init__(self, instruction_set: str | None = None) -> None:
        """`instruction_set`: another than the best. Raises LibraryError if it, or the library, cannot be used."""
        known = instruction_sets()
        if instruction_set is not None and instruction_set not in known:
            raise LibraryError(
                f"instruction set '{instruction_set}' cannot be used here, only {', '.join(known)}"
            )
        self.instruction_set = instruction_set or known[0]
        self.threads = torch.get_num_threads()  # of the kernels that share their work

    @property
    def description(self) -> str:
        return self.instruction_set

    def rms_norm(
        self, weight: torch.Tensor, eps: float
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        return Norm(weight, eps, self.instruction_set)

    def bfloat16_norm(self, weight: torch.Tensor, eps: float) -> HalfNorm:
        return HalfNorm(weight, eps, self.instruction_set, self.threads)

    def turn_heads(self, parts: AttentionParts) -> TurnHeads | None:
        if parts.is_gated or parts.size > MAX_SIZE:
            return None
        return TurnHeads(parts, self.instruction_set, self.threads)

    def gate(self) -> Gate:
        return Gate(self.instruction_set, self.threads)

    def delta_rule(self, parts: DeltaRuleParts) -> DeltaRule | None:
        return DeltaRule(parts, self.instruction_set)

    def attention(self, parts: AttentionParts) -> Attention | None:
        return Attention(parts, self.instruction_set)

    def delta_rule_half(self, half: HalfParts, parts: DeltaRuleParts) -> DeltaRuleHalf | None:
        if half.projection.numel() + half.out.numel() > MAX_COPIED:
            return None
        return DeltaRuleHalf(half, parts, self.instruction_set)

    def attention_half(self, half: HalfParts, parts: AttentionParts) -> AttentionHalf | None:
        if half.projection.numel() + half.out.numel() > MAX_COPIED:
            return None
        return AttentionHalf(half, parts, self.instruction_set)

    def experts(self, parts: ExpertParts) -> Experts | None:
        if parts.gate_up.numel() + parts.down.numel() > MAX_COPIED:
            return None
        return Experts(parts, self.instruction_set)

    def low_rank(self, parts: LowRankParts) -> LowRank | None:
        return LowRank(parts, self.instruction_set)

    def best_allowed(self) -> BestAllowed:
        return BestAllowed(self.instruction_set)

    def linear(self, weight: BlockedWeight) -> BlockedLinear | None:
        if not can_multiply(weight):
            return None
        return BlockedLinear(weight, self.instruction_set, self.threads)

    def few_bits_linear(self, weight: FewBitsWeight) -> FewBitsLinear:
        return FewBitsLinear(weight, self.instruction_set, self.threads)

    def laid_out(self, matrix: StoredBlocks) -> FewBitsWeight | None:
        return laid_out(matrix, self.instruction_set, self.threads)

    def few_bits_rows(self, weight: FewBitsWeight, dtype: torch.dtype) -> FewBitsRows | None:
        if dtype not in (torch.bfloat16, torch.float32) or weight.order is not None:
            return None
        return FewBitsRows(weight, dtype, self.instruction_set, self.threads)

    def paged_attention(self, parts: AttentionParts) -> PagedAttention | None:
        if not can_attend(parts):
            return None
        return PagedAttention(parts, self.instruction_set, self.threads)

    def chunk_attention(self, parts: AttentionParts) -> ChunkAttention | None:
        if not can_attend(parts) or parts.size % 2:
            return None
        return ChunkAttention(parts, self.instruction_set, self.threads)

    def layer(self, parts: LayerParts) -> Layer | None:
        if not can_compute(parts):
            return None
        return Layer(parts, self.instruction_set, self.threads)

    def stack(self, layers: Sequence[LayerKernel]) -> Stack | None:
        own = [layer for layer in layers if isinstance(layer, Layer)]
        if len(own) < len(layers):
            return None
        return Stack(own, self.instruction_set, self.threads)

    def prompts(self, layers: Sequence[LayerKernel]) -> Prompts | None:
        own = [layer for layer in layers if isinstance(layer, Layer) and layer.size % 2 == 0]
        if len(own) < len(layers):
            return None
        return Prompts(own, self.instruction_set, self.threads)

    def rounds(self, parts: RoundParts) -> Rounds | None:
        own = [layer for layer in parts.layers if isinstance(layer, Layer)]
        if len(own) < len(parts.layers) or not can_multiply(parts.head):
            return None
        return Rounds(parts, own, self.instruction_set, self.threads)

    def invariant(self) -> Invariant:
        return Invariant(self.instruction_set, self.threads)


class Norm:
    """See `StepKernels.rms_norm`."""

    __slots__ = ("_eps", "_function", "_weight")

    def __init__(self, weight: torch.Tensor, eps: float, instruction_set: str) -> None:
        self._weight = weight
        self._eps = eps
        self._function = function("rms_norm", instruction_set)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = x.new_empty(x.shape)
        self._function(
            len(x), x.shape[1], x.data_ptr(), self._weight.data_ptr(), self._eps, out.data_ptr()
        )
        return out
