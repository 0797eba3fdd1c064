"""The kernels as a plugin of the point `tenonry.step_kernels`. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch

from tenonry_kernels_cpu.attention import Attention
from tenonry_kernels_cpu.best_allowed import BestAllowed
from tenonry_kernels_cpu.between import Gate, HalfNorm, TurnHeads
from tenonry_kernels_cpu.blocked import BlockedLinear, LowBitLinear
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
from tenonry_kernels_cpu.stored import LowBitRows, laid_out
from tenonry_torch_base.kernel_parts import (
    AttentionHalfParts,
    BestAllowedParts,
    Bfloat16NormParts,
    ChunkAttentionParts,
    DeltaRuleHalfParts,
    GateParts,
    LinearParts,
    LowBitParts,
    LowBitRowsParts,
    NormParts,
    PagedAttentionParts,
    PromptParts,
    StackParts,
    TurnParts,
)
from tenonry_torch_base.low_bit import LARGEST_GROUP
from tenonry_torch_base.low_rank import LowRankParts
from tenonry_torch_base.step_kernels import (
    AttentionParts,
    DeltaRuleParts,
    ExpertParts,
    LayerParts,
    Refusal,
    RoundParts,
    StepKernels,
    makes,
)

if TYPE_CHECKING:
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.quantisations import StoredBlocks
    from tenonry_torch_base.step_kernels import HalfParts

MAX_COPIED = 1 << 20  # weights of one layer, of which kernels hold a second copy
TOO_LARGE = Refusal(
    f"the layer has more than {MAX_COPIED} weights, of which the kernel would hold a second copy"
)
NOT_MULTIPLIED = Refusal("the weight has a shape without a kernel")
NOT_ATTENDED = Refusal("heads have a size, or parts, without a kernel")
NOT_OWN = Refusal("not all layers, or not the head, have a kernel of their own here")


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

    @makes(NormParts)
    def rms_norm(self, parts: NormParts) -> Norm:
        return Norm(parts.weight, parts.eps, self.instruction_set)

    @makes(Bfloat16NormParts)
    def bfloat16_norm(self, parts: Bfloat16NormParts) -> HalfNorm:
        return HalfNorm(parts.weight, parts.eps, self.instruction_set, self.threads)

    @makes(TurnParts)
    def turn_heads(self, parts: TurnParts) -> TurnHeads | Refusal:
        attention = parts.attention
        if attention.is_gated or attention.size > MAX_SIZE:
            return Refusal(f"heads have a gate, or more than {MAX_SIZE} elements")
        return TurnHeads(attention, self.instruction_set, self.threads)

    @makes(GateParts)
    def gate(self, parts: GateParts) -> Gate:
        return Gate(self.instruction_set, self.threads)

    @makes(DeltaRuleParts)
    def delta_rule(self, parts: DeltaRuleParts) -> DeltaRule:
        return DeltaRule(parts, self.instruction_set)

    @makes(AttentionParts)
    def attention(self, parts: AttentionParts) -> Attention:
        return Attention(parts, self.instruction_set)

    @makes(DeltaRuleHalfParts)
    def delta_rule_half(self, parts: DeltaRuleHalfParts) -> DeltaRuleHalf | Refusal:
        if num_weights(parts.half) > MAX_COPIED:
            return TOO_LARGE
        return DeltaRuleHalf(parts.half, parts.rule, self.instruction_set)

    @makes(AttentionHalfParts)
    def attention_half(self, parts: AttentionHalfParts) -> AttentionHalf | Refusal:
        if num_weights(parts.half) > MAX_COPIED:
            return TOO_LARGE
        return AttentionHalf(parts.half, parts.attention, self.instruction_set)

    @makes(ExpertParts)
    def experts(self, parts: ExpertParts) -> Experts | Refusal:
        if parts.gate_up.numel() + parts.down.numel() > MAX_COPIED:
            return TOO_LARGE
        return Experts(parts, self.instruction_set)

    @makes(LowRankParts)
    def low_rank(self, parts: LowRankParts) -> LowRank:
        return LowRank(parts, self.instruction_set)

    @makes(BestAllowedParts)
    def best_allowed(self, parts: BestAllowedParts) -> BestAllowed:
        return BestAllowed(self.instruction_set)

    @makes(LinearParts)
    def linear(self, parts: LinearParts) -> BlockedLinear | Refusal:
        if not can_multiply(parts.weight):
            return NOT_MULTIPLIED
        return BlockedLinear(parts.weight, self.instruction_set, self.threads)

    @makes(LowBitParts)
    def low_bit_linear(self, parts: LowBitParts) -> LowBitLinear | Refusal:
        weight = parts.weight
        if weight.input_bits > 8 and weight.inputs // weight.num_groups > LARGEST_GROUP:
            return Refusal(f"inputs of 16 bits need groups of at most {LARGEST_GROUP} inputs")
        return LowBitLinear(weight, self.instruction_set, self.threads)

    def laid_out(self, matrix: StoredBlocks) -> LowBitWeight | None:
        return laid_out(matrix, self.instruction_set, self.threads)

    @makes(LowBitRowsParts)
    def low_bit_rows(self, parts: LowBitRowsParts) -> LowBitRows | Refusal:
        if parts.dtype not in (torch.bfloat16, torch.float32) or parts.weight.order is not None:
            return Refusal(
                "rows are dequantised to bfloat16 or float32, without an order of inputs"
            )
        return LowBitRows(parts.weight, parts.dtype, self.instruction_set, self.threads)

    @makes(PagedAttentionParts)
    def paged_attention(self, parts: PagedAttentionParts) -> PagedAttention | Refusal:
        if not can_attend(parts.attention):
            return NOT_ATTENDED
        return PagedAttention(parts.attention, self.instruction_set, self.threads)

    @makes(ChunkAttentionParts)
    def chunk_attention(self, parts: ChunkAttentionParts) -> ChunkAttention | Refusal:
        if not can_attend(parts.attention) or parts.attention.size % 2:
            return NOT_ATTENDED
        return ChunkAttention(parts.attention, self.instruction_set, self.threads)

    @makes(LayerParts)
    def layer(self, parts: LayerParts) -> Layer | Refusal:
        if not can_compute(parts):
            return Refusal("a matrix, or the attention, has a shape without a kernel")
        return Layer(parts, self.instruction_set, self.threads)

    @makes(StackParts)
    def stack(self, parts: StackParts) -> Stack | Refusal:
        own = [layer for layer in parts.layers if isinstance(layer, Layer)]
        if len(own) < len(parts.layers):
            return NOT_OWN
        return Stack(own, self.instruction_set, self.threads)

    @makes(PromptParts)
    def prompts(self, parts: PromptParts) -> Prompts | Refusal:
        own = [layer for layer in parts.layers if isinstance(layer, Layer) and layer.size % 2 == 0]
        if len(own) < len(parts.layers):
            return NOT_OWN
        return Prompts(own, self.instruction_set, self.threads)

    @makes(RoundParts)
    def rounds(self, parts: RoundParts) -> Rounds | Refusal:
        own = [layer for layer in parts.layers if isinstance(layer, Layer)]
        if len(own) < len(parts.layers) or not can_multiply(parts.head):
            return NOT_OWN
        return Rounds(parts, own, self.instruction_set, self.threads)

    def invariant(self) -> Invariant:
        return Invariant(self.instruction_set, self.threads)


def num_weights(half: HalfParts) -> int:
    """Weights of both projections."""
    return half.projection.numel() + half.out.numel()


class Norm:
    """See `NormParts`."""

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
