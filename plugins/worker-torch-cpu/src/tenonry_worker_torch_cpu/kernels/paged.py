"""Attention over blocks and whole layers of rows that decode, by kernels for bfloat16. Worker process."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

import torch

from tenonry_torch_base.attention.groups import GroupedBackend
from tenonry_torch_base.step_kernels import AttentionParts, LayerParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP
from tenonry_worker_torch.state.backend import StatefulBackend
from tenonry_worker_torch_cpu.attention.cpu import CpuBackend
from tenonry_worker_torch_cpu.kernels.attention import LONGEST, SHORTEST, TrialStep, attention_parts
from tenonry_worker_torch_cpu.kernels.linear import KernelLinear
from tenonry_worker_torch_cpu.kernels.low_bit import LowBitLayer
from tenonry_worker_torch_cpu.kernels.trial import Candidates
from tenonry_worker_torch_cpu.packing.onednn import PackedLinear
from tenonry_worker_torch_cpu.packing.widened import BlockedLinear

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tenonry_torch_base.attention.base import AttentionBackend, LayerSpec
    from tenonry_torch_base.attention.layer import AttentionLayer
    from tenonry_torch_base.low_bit import LowBitWeight
    from tenonry_torch_base.paged_attention import PagedKernel, PagedKeys
    from tenonry_torch_base.step_kernels import BlockedWeight, StackKernel
    from tenonry_torch_base.step_kernels import LayerKernel as Kernel
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.linear import Linear
    from tenonry_worker_torch.fuse.rope import RopeTable

TOLERANCE = 3e-2  # relative error (L2): our operations round to 16 bits after each step


class WholeLayer(NamedTuple):
    """Kernel of a whole fused layer, for up to `most` rows."""

    layer: AttentionLayer
    kernel: Kernel
    most: int

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor | None, sin: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Compute the layer; None if the step has other tokens than decoding rows', too many, or some that attend to
        others.
        """
        if len(hidden) > self.most or cos is None or sin is None:
            return None
        step = self.layer.step
        keys = step.backend.paged_keys(self.layer, step.plan)
        if keys is None or (keys.is_dependent and not getattr(self.kernel, "writes_first", False)):
            return None
        return self.kernel(hidden, cos, sin, keys)


class WholeStack(NamedTuple):
    """Kernel of all fused layers, for up to `most` rows. `layers`: K/V locations of each one."""

    layers: tuple[AttentionLayer, ...]
    kernel: StackKernel
    most: int

    def __call__(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor | None:
        """Compute all layers; None as in `WholeLayer`."""
        if len(hidden) > self.most:
            return None
        first = self.layers[0]
        keys = first.step.backend.paged_keys(first, first.step.plan)
        if keys is None or (keys.is_dependent and not getattr(self.kernel, "writes_first", False)):
            return None
        blocks = [layer.kv_cache[0].both for layer in self.layers]
        return self.kernel(hidden, cos, sin, keys, blocks)


def cpu_backends(backend: AttentionBackend) -> list[CpuBackend]:
    """CPU backends of attention; none if one of the backends has another class."""
    if isinstance(backend, StatefulBackend):
        backend = backend.attention
    parts = backend.parts if isinstance(backend, GroupedBackend) else (backend,)
    found = [part for part in parts if type(part) is CpuBackend]
    return found if len(found) == len(parts) else []


def is_plain(layer: AttentionLayer) -> bool:
    """Return True if decoding rows see exactly their last tokens, or all."""
    spec = layer.spec
    is_other = spec.chunk or spec.softcap or spec.sinks or spec.indexed
    has_one_size = spec.key_size == spec.value_size
    return has_one_size and not is_other and layer.rank_heads is None


def paged_parts(spec: LayerSpec) -> AttentionParts:
    """Parts of attention alone."""
    return AttentionParts(
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        size=spec.key_size,
        is_gated=False,
        norm_weight=None,
        norm_eps=0.0,
        scaling=spec.scaling,
        window=spec.window,
    )


def layer_parts(layer: FusedLayer, rope: RopeTable | None) -> LayerParts | None:
    """Return the parts of a layer; None for parts or an order without kernel support."""
    own = layer.attention
    mlp = layer.mlp
    if not isinstance(own, FusedAttention) or not isinstance(mlp, FusedMLP):
        return None
    has_others = layer.after_attention is not None or layer.after_mlp is not None
    if has_others or own.gate_order is not None or rope is None or len(rope.cos) < SHORTEST:
        return None
    first = layer.before_attention
    second = layer.before_mlp
    if first is None or second is None or first.weight is None or second.weight is None:
        return None
    weights = [blocked_of(each) for each in (own.qkv, own.out, mlp.gate_up, mlp.down)]
    known = [weight for weight in weights if weight is not None]
    if len(known) < len(weights):
        return None
    projection, out, gate_up, down = known
    return LayerParts(
        attention=attention_parts(own),
        norm_weight=first.weight.detach().float(),
        norm_eps=first.eps,
        projection=projection,
        out=out,
        second_norm_weight=second.weight.detach().float(),
        second_norm_eps=second.eps,
        gate_up=gate_up,
        down=down,
    )


def blocked_of(linear: Linear) -> BlockedWeight | LowBitWeight | None:
    """Packed weight of an unmodified packed layer, in the layout of kernels."""
    if isinstance(linear, LowBitLayer):
        return linear.weight
    if isinstance(linear, KernelLinear):
        linear = linear.own
    return linear.blocked() if isinstance(linear, PackedLinear | BlockedLinear) else None


def attention_candidates(
    own: FusedAttention, kernel: PagedKernel, rope: RopeTable, count: int
) -> Candidates:
    """Attention of rows that decode, with slabs and with the kernel, over the same random keys."""
    spec = own.spec
    steps = [trial_step(own, rope, count), trial_step(own, rope, count, {spec.name: kernel})]
    for step in steps:
        step.after_entering(rope)
    query = torch.randn(count, spec.num_heads, spec.key_size).bfloat16()
    both = torch.randn(count, 2 * spec.num_kv_heads, spec.key_size).bfloat16()
    key, value = both.chunk(2, 1)
    first, second = (step.layer for step in steps)
    return Candidates(
        lambda: (first(query, key, value, both),),
        lambda: (second(query, key, value, both),),
        TOLERANCE,
    )


def layer_candidates(
    layer: FusedLayer, kernel: Kernel, attends: PagedKernel, rope: RopeTable, count: int
) -> Candidates:
    """Both over `count` random tokens, the second ones after their rows entered."""
    own = layer.attention
    if not isinstance(own, FusedAttention):
        raise TypeError(f"a layer with {type(own).__name__} has no kernel")
    first = trial_step(own, rope, count, {own.spec.name: attends})
    second = trial_step(own, rope, count, {own.spec.name: attends})
    first.after_entering(rope)
    cos, sin = second.after_entering(rope)
    keys = paged_keys(second)
    hidden = torch.randn(count, len(layer.before_mlp.weight)).bfloat16()
    fused = copy.copy(layer)
    fused.kernel = None
    fused.attention = first.own
    return Candidates(
        lambda: (fused(hidden, cos, sin), first.kept()),
        lambda: (kernel(hidden, cos, sin, keys), second.kept()),
        TOLERANCE,
    )


def stack_candidates(
    layers: Sequence[FusedLayer],
    kernels: tuple[Sequence[Kernel], StackKernel],
    attends: PagedKernel,
    rope: RopeTable,
    count: int,
) -> Candidates:
    """Kernels of some layers, called one after another, and the one for all of them, over `count` random tokens."""
    steps: list[list[TrialStep]] = []
    for _ in range(2):
        owns = [layer.attention for layer in layers if isinstance(layer.attention, FusedAttention)]
        steps.append([trial_step(own, rope, count, {own.spec.name: attends}) for own in owns])
    turns = [step.after_entering(rope) for each in steps for step in each]
    cos, sin = turns[0]
    hidden = torch.randn(count, len(layers[0].before_mlp.weight)).bfloat16()
    singly, whole = kernels
    blocks = [step.cache.both for step in steps[1]]

    def one_by_one() -> tuple[torch.Tensor, ...]:
        made = hidden
        for kernel, step in zip(singly, steps[0], strict=True):
            made = kernel(made, cos, sin, paged_keys(step))
        return (made, *(step.kept() for step in steps[0]))

    def together() -> tuple[torch.Tensor, ...]:
        made = whole(hidden, cos, sin, paged_keys(steps[1][0]), blocks)
        return (made, *(step.kept() for step in steps[1]))

    return Candidates(one_by_one, together, TOLERANCE, is_timed=False)


def trial_step(
    own: FusedAttention,
    rope: RopeTable,
    count: int,
    kernels: Mapping[str, PagedKernel] | None = None,
) -> TrialStep:
    """A trial step in bfloat16, within the length of the rotary table."""
    longest = min(LONGEST, len(rope.cos))
    return TrialStep(own, own.spec, count, longest, torch.bfloat16, kernels)


def paged_keys(step: TrialStep) -> PagedKeys:
    """Location of keys in a step after the first one."""
    found = step.step.backend.paged_keys(step.layer, step.step.plan)
    if found is None:
        raise RuntimeError(f"rows of {step.layer.spec.name} are not in blocks for kernels")
    return found
