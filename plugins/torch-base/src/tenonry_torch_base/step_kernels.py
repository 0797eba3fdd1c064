"""Contract and parameters of kernels for parts of a decoding step; the extension point `tenonry.step_kernels`. Worker
process.

A worker requests a kernel per part of a layer, at load. It compares each with its own operations, on random inputs, and
uses it instead of them if results agree and, unless it was selected by name, it is faster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from tenonry_torch_base.attention_parts import AttentionParts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from tenonry_torch_base.invariant import InvariantKernels
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.paged_attention import PagedKeys
    from tenonry_torch_base.quantisations import StoredBlocks


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
    unit_eps: float  # added to the sum of squares under the root when query and key are normalised

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
    """A linear layer of few rows, possibly none."""

    def __call__(self, x: torch.Tensor, other: torch.Tensor | None = None) -> torch.Tensor:
        """`x` [N, inputs] → [N, outputs], plus `other` of that shape if given; all contiguous bfloat16. Sums are in
        float32 and are rounded once.
        """
        ...


class LowBitKernel(Protocol):
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
    Inputs of quantised weights are rounded as in `LowBitKernel`.
    """

    attention: AttentionParts
    norm_weight: torch.Tensor
    norm_eps: float
    projection: BlockedWeight | LowBitWeight
    out: BlockedWeight | LowBitWeight
    second_norm_weight: torch.Tensor
    second_norm_eps: float
    gate_up: BlockedWeight | LowBitWeight
    down: BlockedWeight | LowBitWeight


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
    """Several layers in one call, each with its own K/V."""

    def __call__(
        self,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        keys: PagedKeys,
        blocks: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """As `LayerKernel`, with the K/V of each layer in its `blocks`, and everything else as in `keys`."""
        ...


@dataclass(frozen=True, slots=True)
class RoundParts:
    """A whole model: `layers` made of `LayerParts`, and the modules before and after them.

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


class Refusal(NamedTuple):
    """Absence of a kernel: the part uses the worker's own operations."""

    reason: str


def makes(kind: type) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method of `StepKernels` that receives parts of this type, and returns their kernel or a `Refusal`."""

    def marked(method: Callable[..., Any]) -> Callable[..., Any]:
        method.makes = kind  # type: ignore[attr-defined] - read by `StepKernels`
        return method

    return marked


def _makers_of(base: type) -> dict[type, str]:
    found: dict[type, str] = vars(base).get("makers", {})
    return found


class StepKernels(ABC):
    """Kernels for one worker process. Construction may load a library.

    A method with the decorator `makes` makes kernels of one type of parts, or returns a `Refusal`: that part uses the
    worker's own operations, like parts of a type without a method.

    A kernel stores its own form of the weights, which never change while it is used, except for adapters. Kernels are
    called from one thread, one after another, in `torch.inference_mode`; they return new tensors. An input with NaN or
    infinities must not end the process, nor change the results of other rows.
    """

    name: ClassVar[str]
    interface_version: ClassVar[int] = 1
    devices: ClassVar[frozenset[str]] = frozenset({"cpu"})  # types of device whose memory they read
    kept: ClassVar[frozenset[str]] = (
        frozenset()
    )  # see `PagedKeys`: supported storage besides bfloat16
    makers: ClassVar[dict[type, str]] = {}  # type of parts → name of the method

    @classmethod
    @abstractmethod
    def refusal(cls) -> str | None:
        """Return the reason why there are no kernels in this process; None if there are. Called before construction."""

    @property
    def description(self) -> str:
        """Text logged after the name, such as the chosen instruction set."""
        return ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        bases = reversed(cls.__mro__[1:])
        made = {kind: name for base in bases for kind, name in _makers_of(base).items()}
        cls.makers = made | {
            method.makes: name for name, method in vars(cls).items() if hasattr(method, "makes")
        }

    def make(self, parts: Any) -> Any:
        """Make the kernel of these parts, by the method that `makes` their type; or return the reason for none."""
        kind = type(parts)
        name = self.makers.get(kind)
        if name is None:
            return Refusal(f"step kernels '{self.name}' have none for {kind.__name__}")
        return getattr(self, name)(parts)

    def laid_out(self, matrix: StoredBlocks) -> LowBitWeight | None:
        """A matrix of a GGUF file in the layout of `low_bit_linear`; None if its kind is not known.

        Raises ValueError for scales that are not finite.
        """
        return None

    def invariant(self) -> InvariantKernels | None:
        """Batch-invariant kernels: the same bits for a token in any batch."""
        return None
