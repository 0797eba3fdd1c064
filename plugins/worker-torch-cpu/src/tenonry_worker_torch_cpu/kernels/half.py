"""The first half of a fused layer by a kernel, in decode-only steps. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_torch_base.step_kernels import HalfParts
from tenonry_worker_torch.fuse.linear import DenseLinear
from tenonry_worker_torch.fuse.mixers.delta_rule import MATRIX, WINDOW
from tenonry_worker_torch_cpu.kernels.attention import KernelAttention, held_for, trial_steps
from tenonry_worker_torch_cpu.kernels.mixer import KernelDeltaRule, random_states
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.step_kernels import AttentionKernel, DeltaRuleKernel
    from tenonry_worker_torch.fuse.block import FusedAttention
    from tenonry_worker_torch.fuse.layer import FirstHalf, FusedLayer
    from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch.state.mixer import PackedMixer


class MixerHalf(NamedTuple):
    """First half with a gated delta rule. None if the step has other tokens than decoding rows'."""

    mixer: PackedMixer
    kernel: DeltaRuleKernel

    def __call__(
        self, hidden: torch.Tensor, _cos: torch.Tensor | None, _sin: torch.Tensor | None
    ) -> torch.Tensor | None:
        found = self.mixer.decoding()
        if found is None:
            return None
        states, rows = found
        return self.kernel(hidden, states[WINDOW], states[MATRIX], rows)


class AttentionHalf(NamedTuple):
    """First half with attention. None if its kernel cannot run this step."""

    layer: AttentionLayer
    kernel: AttentionKernel

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None
    ) -> torch.Tensor | None:
        held = held_for(self.layer, len(hidden))
        if held is None or cos is None or sin is None:
            return None
        return self.kernel(hidden, cos, sin, held)


def half_parts(layer: FusedLayer, projection: object, out: object) -> HalfParts | None:
    """Return the operations around the part of a layer; None for anything but a norm, two matrices and the residual."""
    norm = layer.before_attention
    if norm is None or norm.weight is None or layer.after_attention is not None:
        return None
    if not isinstance(projection, DenseLinear) or not isinstance(out, DenseLinear):
        return None
    if projection.bias is not None or out.bias is not None:
        return None
    return HalfParts(
        norm_weight=norm.weight.detach().float(),
        norm_eps=norm.eps,
        projection=projection.weight,
        out=out.weight,
    )


def mixer_candidates(
    layer: FusedLayer,
    mixer: PackedMixer,
    own: DeltaRule | KernelDeltaRule,
    kernel: DeltaRuleKernel,
    count: int,
) -> Candidates:
    """Both over `count` random rows, with random states."""
    hidden = torch.randn(count, mixer.hidden_size)
    states = random_states(mixer, count)
    others = {key: state.clone() for key, state in states.items()}
    norm = layer.before_attention

    def with_torch() -> tuple[torch.Tensor, ...]:
        made = own(norm(hidden), states)
        return made + hidden, *states.values()

    def with_kernel() -> tuple[torch.Tensor, ...]:
        made = kernel(hidden, others[WINDOW], others[MATRIX], None)
        return made, *others.values()

    return Candidates(with_torch, with_kernel)


def attention_candidates(
    layer: FusedLayer, own: FusedAttention, kernel: AttentionKernel, rope: RopeTable, count: int
) -> Candidates:
    """Both over `count` random tokens, the second ones after their rows entered."""
    first, second = trial_steps(own, rope, count)
    first.after_entering(rope)
    cos, sin = second.after_entering(rope)
    held = second.held()
    kept = first.held()
    hidden = torch.randn(count, len(layer.before_attention.weight))
    norm = layer.before_attention
    attends: FirstHalf = first.own
    if isinstance(layer.attention, KernelAttention):
        attends = KernelAttention(first.own, first.layer, layer.attention.kernel)

    def with_torch() -> tuple[torch.Tensor, ...]:
        heads = attends.heads(norm(hidden), cos, sin, None)
        return own.out.add(heads, hidden), kept.slab, first.kept()

    def with_kernel() -> tuple[torch.Tensor, ...]:
        return kernel(hidden, cos, sin, held), held.slab, second.kept()

    return Candidates(with_torch, with_kernel)
