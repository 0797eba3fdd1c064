"""Contract and parameters of kernels for parts of a decoding step; the extension point `tenonry.step_kernels`. Worker
process.

A worker requests a kernel per part of a layer, at load. It compares each with its own operations, on random inputs, and
uses it instead of them if results agree and, unless it was selected by name, it is faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from tenonry_torch_base.attention_parts import AttentionParts, TurnKernel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from tenonry_torch_base.few_bits import FewBitsWeight
    from tenonry_torch_base.invariant import InvariantKernels
    from tenonry_torch_base.low_rank import LowRankKernel, LowRankParts
    from tenonry_torch_base.paged_attention import ChunkKernel, PagedKernel, PagedKeys, PromptKernel
    from tenonry_torch_base.quantisations import StoredBlocks
    from tenonry_torch_base.round_kernel import RoundKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRuleParts:
    """A gated delta rule (arXiv:2412.06464) between the projections of its layer. All tensors are float32, contiguous.

    A projected row holds query and key [key_heads · key_size each], value and gate [heads · value_size each], rate and
    decay [heads each], in this order after its columns were permuted by `order` i64[columns] (None: no permutation).
    Query, key and value are the `channels` of a causal convolution with SiLU, `window_weight` [taps, channels] and
    `window_bias` [channels] or None. A key head serves heads / key_heads value heads, which are neighbours.
    """

    key_heads: int
    heads: int
    key_size: int
    value_size: int
    order: torch.Tensor | None
    window_weight: torch.Tensor
    window_bias: torch.Tensor | None
    decay_rate: torch.Tensor  # [heads], below zero
    decay_bias: torch.Tensor  # [heads]
    norm_weight: torch.Tensor  # [value_size]
    norm_eps: float
    unit_eps: float  # under the root, added to the sum of squares, when query and key are made unit vectors

    @property
    def channels(self) -> int:
        return 2 * self.key_heads * self.key_size + self.heads * self.value_size

    @property
    def columns(self) -> int:
        return self.channels + self.heads * self.value_size + 2 * self.heads


class DeltaRuleKernel(Protocol):
    """One token of each of R rows."""

    def __call__(
        self,
        projected: torch.Tensor,
        window: torch.Tensor,
        matrix: torch.Tensor,
        rows: torch.Tensor | None,
    ) -> torch.Tensor:
        """`projected` [R, columns] → [R, heads · value_size], all float32; changes the states in place.

        `window` [N, channels, taps] with stride 1 over channels, `matrix` [N, heads, key_size, value_size], its last
        three dimensions contiguous. `rows` i64[R]: which of the N states are those of the R rows, no two of them equal;
        None: the first R, in order. The window moves on by one and its last place gets the new input; out of it comes
        the convolution, in float32. Per head with query q and key k made unit vectors, q also over √key_size, α = exp(
        softplus(decay + bias) · rate) and β = sigmoid(rate column): S ← α·S, then S ← S + k ⊗ β·(v − kᵀS), and qᵀS
        goes through the root-mean-square norm and is multiplied with SiLU of the gate.
        """
        ...


class HeldKeys(NamedTuple):
    """Both locations of the keys and values of R rows, and of those of the new tokens.

    `slab` [2, slots, kv_heads, capacity, size] has all of a row contiguously; `column` i64[R] is slot · capacity +
    place of its new token, so that many come before. `blocks` [N, 2 · kv_heads, block_size, size], keys before values;
    `places` i64[R] is block · block_size + place of the new token. Both are contiguous, in float32. `longest`: the keys
    of the longest row, its new one included.
    """

    slab: torch.Tensor
    column: torch.Tensor
    blocks: torch.Tensor
    places: torch.Tensor
    longest: int


class AttentionKernel(Protocol):
    """One token of each of R rows."""

    def __call__(
        self, projected: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, held: HeldKeys
    ) -> torch.Tensor:
        """`projected` [R, columns] → [R, heads · size]; `cos`, `sin` [R, 1, rotated]; all contiguous float32.

        The first `rotated` elements of each query and key become x · cos + roll(x, rotated // 2) · sin, after the norm.
        Keys and values are written into `held.slab` and `held.blocks`, and nothing else there is changed. The slab
        after a row's new token is not defined, and may be NaN. The result is softmax(q · k · scaling) · v over the
        row's tokens in the slab, the new one included, times the sigmoid of the gate if there is one.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertParts:
    """The feed-forward half of a decoder layer with gated experts (SiLU). All tensors are float32.

    Scores are softmax over `router` [experts, hidden]; the `chosen` largest are kept and, with `is_normalised`, made to
    sum to 1. `gate_up` [experts, 2 · inner, hidden], `down` [experts, hidden, inner]. A shared expert, `shared_gate_up`
    [2 · shared, hidden] and `shared_down` [hidden, shared], is multiplied with the sigmoid of `shared_gate` [hidden];
    None without a shared expert. `norm_weight` [hidden] multiplies the normalised input, an offset included.
    """

    norm_weight: torch.Tensor
    norm_eps: float
    router: torch.Tensor
    chosen: int
    is_normalised: bool
    gate_up: torch.Tensor
    down: torch.Tensor
    shared_gate_up: torch.Tensor | None = None
    shared_down: torch.Tensor | None = None
    shared_gate: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfParts:
    """Layers around a part in the first half of a decoder layer. All tensors are float32.

    `norm_weight` [hidden], as in `ExpertParts`; `projection` [columns, hidden] computes the part's input, and `out`
    [hidden, heads · size] projects its output. There are no biases.
    """

    norm_weight: torch.Tensor
    norm_eps: float
    projection: torch.Tensor
    out: torch.Tensor


class BestAllowedKernel(Protocol):
    """Kernel for rows whose next token is bounded by a mask."""

    def __call__(
        self, logits: torch.Tensor, masks: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Index of the first largest allowed logit of each row, i64[N], and that logit, f32[N]; `logits` stay
        unchanged.

        `logits` [N, V] in float32 or bfloat16, V a multiple of 32; `masks` i32[N, V / 32], bit i % 32 of word i // 32
        for token i. Both are contiguous. The logit is −∞ if a row allows none that is larger, and NaN if the row holds
        one, allowed or not; in both cases the index is any of the row.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockedWeight:
    """A weight [outputs, inputs] in bfloat16 as oneDNN lays it out: blocks of 64 outputs, pairs of inputs.

    `blocks` [⌈outputs / 64⌉, 16 · ⌈inputs / 32⌉, 64, 2]: blocks[b, k, r, e] is weight[64 · b + r, 2 · k + e], and zero
    outside of the weight. `bias` [outputs] in float32, or None. The memory is oneDNN's: a reference to `blocks` keeps
    it alive.
    """

    outputs: int
    inputs: int
    blocks: torch.Tensor
    bias: torch.Tensor | None = None


class LinearKernel(Protocol):
    """A linear layer of few rows, or of none."""

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """`x` [N, inputs] → [N, outputs], plus `other` of that shape if given; all contiguous bfloat16. Sums are in
        float32 and are rounded once.
        """
        ...


class FewBitsKernel(Protocol):
    """A linear layer with a quantised weight, for any number of rows."""

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """As `LinearKernel`, all in bfloat16 or all in float32.

        Each row may be rounded to 8 bits with a scale for each group of inputs. A row's result depends on no other row,
        and on their number only by rounding of sums. A row with a NaN or infinity has no finite result.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParts:
    """A decoder layer of the Llama kind in bfloat16, without a gate of its attention.

    hidden + out(attention(projection(norm(hidden)))), and of that x + down(silu(gate) · up) with gate and up one behind
    the other in gate_up(second norm(x)). Norms as in `ExpertParts`, their weights in float32, as those of `attention`.
    Inputs of quantised weights are rounded as in `FewBitsKernel`.
    """

    attention: AttentionParts
    norm_weight: torch.Tensor
    norm_eps: float
    projection: BlockedWeight | FewBitsWeight
    out: BlockedWeight | FewBitsWeight
    second_norm_weight: torch.Tensor
    second_norm_eps: float
    gate_up: BlockedWeight | FewBitsWeight
    down: BlockedWeight | FewBitsWeight


class LayerKernel(Protocol):
    """A layer of R rows with one new token each. For dependent rows it needs a true attribute `writes_first`."""

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, keys: PagedKeys
    ) -> torch.Tensor:
        """`hidden` [R, hidden], which stays, → [R, hidden]; `cos`, `sin` [R, 1, rotated]; all contiguous bfloat16.

        Queries and keys are normed and rotated as an `AttentionKernel` does it. Each row's key and value are written to
        the place of its newest token, and nothing else in the blocks is changed.
        """
        ...


class StackKernel(Protocol):
    """Layers one after another, each with K/V of its own, in one call."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """As `LayerKernel`, with the K/V of each layer in its `blocks`, and all else as `keys` has it."""
        ...


@dataclass(frozen=True, slots=True)
class RoundParts:
    """A whole model: `layers` made by `StepKernels.layer`, and the modules before and after them.

    `embedding` [vocabulary, hidden], `cos` and `sin` [positions, rotated] in bfloat16, the first half of `sin` negated;
    `norm_weight` f32[hidden] and `norm_eps` of the last norm.
    """

    layers: Sequence[LayerKernel]
    embedding: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    norm_weight: torch.Tensor
    norm_eps: float
    head: BlockedWeight


class StepKernels(ABC):
    """Kernels for one worker process. Construction may load a library.

    Each method makes a kernel from the parts of one layer, or returns None: that part stays with the worker's own
    operations. A kernel stores its own form of the weights, which never change while it is used, except for adapters.
    Kernels are called from one thread, one after another, in `torch.inference_mode`; they return tensors of their own.
    An input with NaN or infinities must not end the process, nor change the results of other rows.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})  # types of device whose memory they read
    kept: ClassVar[frozenset[str]] = (
        frozenset()
    )  # see `PagedKeys`: what these hold besides bfloat16

    @classmethod
    @abstractmethod
    def refusal(cls) -> str | None:
        """Reason why there are no kernels in this process; None if there are. Called before construction."""

    @property
    def description(self) -> str:
        """Text logged after the name, such as the chosen instruction set."""
        return ""

    def rms_norm(
        self, weight: torch.Tensor, eps: float
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """X / √(mean(x²) + eps) · weight over the last dimension of a contiguous float32 `x` [N, size]."""
        return None

    def bfloat16_norm(
        self, weight: torch.Tensor, eps: float
    ) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The same of a contiguous bfloat16 `x`, in bfloat16; `weight` is in float32."""
        return None

    def turn_heads(self, parts: AttentionParts) -> TurnKernel | None:
        """See `TurnKernel`."""
        return None

    def gate(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """Silu(gate) · up of a contiguous bfloat16 [N, 2 · inner], concatenated in each row, → [N, inner]."""
        return None

    def delta_rule(self, parts: DeltaRuleParts) -> DeltaRuleKernel | None:
        """See `DeltaRuleKernel`."""
        return None

    def attention(self, parts: AttentionParts) -> AttentionKernel | None:
        """See `AttentionKernel`."""
        return None

    def delta_rule_half(self, half: HalfParts, parts: DeltaRuleParts) -> DeltaRuleKernel | None:
        """As `delta_rule`, from `hidden` [R, hidden] instead of `projected`: the sum of `hidden` and the part's output
        for its norm, projected by `half.out`, [R, hidden]. The input is not changed.
        """
        return None

    def attention_half(self, half: HalfParts, parts: AttentionParts) -> AttentionKernel | None:
        """As `attention`, from `hidden` instead of `projected`; see `delta_rule_half`."""
        return None

    def experts(self, parts: ExpertParts) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """A kernel from `hidden` [T, hidden] to the sum of `hidden` and the experts' output for its norm.

        Both are contiguous and in float32; the input is not changed.
        """
        return None

    def low_rank(self, parts: LowRankParts) -> LowRankKernel | None:
        """See `LowRankKernel`."""
        return None

    def best_allowed(self) -> BestAllowedKernel | None:
        """See `BestAllowedKernel`."""
        return None

    def linear(self, weight: BlockedWeight) -> LinearKernel | None:
        """See `LinearKernel`."""
        return None

    def few_bits_linear(self, weight: FewBitsWeight) -> FewBitsKernel | None:
        """See `FewBitsKernel`."""
        return None

    def laid_out(self, matrix: StoredBlocks) -> FewBitsWeight | None:
        """A matrix of a GGUF file in the layout of `few_bits_linear`; None if its kind is not known.

        Raises ValueError for scales that are not finite.
        """
        return None

    def few_bits_rows(
        self, weight: FewBitsWeight, dtype: torch.dtype
    ) -> Callable[[torch.Tensor | None], torch.Tensor] | None:
        """Function that dequantises rows i64[N] of a weight, or all for None, into [N, inputs] of a data type.

        A row that the weight does not have is NaN.
        """
        return None

    def paged_attention(self, parts: AttentionParts) -> PagedKernel | None:
        """See `PagedKernel`. Parts that apply before the keys are written are ignored."""
        return None

    def chunk_attention(self, parts: AttentionParts) -> ChunkKernel | None:
        """See `ChunkKernel`. Parts as for `paged_attention`."""
        return None

    def layer(self, parts: LayerParts) -> LayerKernel | None:
        """See `LayerKernel`."""
        return None

    def stack(self, layers: Sequence[LayerKernel]) -> StackKernel | None:
        """Chain of kernels made by `layer`. See `StackKernel`."""
        return None

    def prompts(self, layers: Sequence[LayerKernel]) -> PromptKernel | None:
        """Chain of kernels made by `layer`. See `PromptKernel`."""
        return None

    def rounds(self, parts: RoundParts) -> RoundKernel | None:
        """See `RoundKernel`."""
        return None

    def invariant(self) -> InvariantKernels | None:
        """Batch-invariant kernels: the same bits for a token in any batch."""
        return None
