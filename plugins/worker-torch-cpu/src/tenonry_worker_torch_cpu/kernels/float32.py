"""Step kernels for the layers of a model in float32. Worker process."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.kernel_parts import AttentionHalfParts, DeltaRuleHalfParts, NormParts
from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch.fuse.decoder import LeanForward, LeanHead
from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule
from tenonry_worker_torch.fuse.mixers.part import FusedMixer
from tenonry_worker_torch_cpu.kernels import attention, experts, half, mixer, norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_torch_base.step_kernels import AttentionParts, DeltaRuleParts
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.layer import LeanLayer
    from tenonry_worker_torch.fuse.norm import RMSNorm
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch.state.mixer import PackedMixer
    from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser


DELTA_RULE = "delta rule"
ATTENTION = "attention"
EXPERTS = "experts"
NORM = "norm"
FIRST_HALF = "first half"
NORMS_OF_A_LAYER = ("before_attention", "after_attention", "before_mlp", "after_mlp")


class Float32Kernels:
    """Assigns the chosen kernels."""

    def __init__(self, chooser: KernelChooser, changes: Changes) -> None:
        self._chooser = chooser
        self._changes = changes

    def give(
        self,
        forward: Forward,
        mixers: Sequence[PackedMixer],
        *,
        has_adapters: bool = False,
        reads_cache: bool = True,
    ) -> None:
        """Assign kernels to all parts of a model in float32 that have one and are faster with it.

        If adapters add to linear layers, a kernel must call these: those of experts and of first halves compute them
        themselves. `reads_cache`: they can read what will be in the KV cache; otherwise attention has none.
        """
        for each in mixers:
            self._give_mixer(each)
        if isinstance(forward, LeanForward):
            ropes = forward.ropes if reads_cache else {}
            for layer in forward.layers:
                rope = ropes.get(layer.layer_type)
                if rope is not None and isinstance(layer.attention, FusedAttention):
                    self._give_attention(layer, layer.attention, rope)
            for layer in forward.layers:
                if not has_adapters:
                    self._give_experts(layer)
                for place in NORMS_OF_A_LAYER:
                    self._give_norm(layer, place)
                if not has_adapters:
                    self._give_half(layer, ropes.get(layer.layer_type))
            if isinstance(forward.end, LeanHead):
                self._give_norm(forward.end, NORM)

    def _give_mixer(self, each: PackedMixer) -> None:
        path = each.path
        if not isinstance(path, DeltaRule):
            return
        parts = mixer.delta_rule_parts(path)
        made = None if parts is None else self._chooser.make(parts)
        if made is None:
            self._chooser.left[DELTA_RULE] += 1
            return
        with_kernel = mixer.KernelDeltaRule(path, made)
        compared = partial(mixer.candidates, each, path, with_kernel)
        if self._chooser.prefers((DELTA_RULE, each.kind, *_kind_of(parts)), compared):
            self._changes.set(each, "path", with_kernel)

    def _give_attention(self, layer: LeanLayer, own: FusedAttention, rope: RopeTable) -> None:
        attends_in = attention.attention_layer(own, rope)
        if attends_in is None:
            return
        parts = attention.attention_parts(own)
        made = self._chooser.make(parts)
        if made is None:
            self._chooser.left[ATTENTION] += 1
            return
        compared = partial(attention.candidates, own, made, rope)
        if self._chooser.prefers((ATTENTION, *_kind_of(parts), rope.size), compared):
            self._changes.set(layer, "attention", attention.KernelAttention(own, attends_in, made))

    def _give_half(self, layer: LeanLayer, rope: RopeTable | None) -> None:
        """Runs after the inner parts have their kernels: one for the whole half must be faster than those."""
        part = layer.attention
        if isinstance(part, FusedMixer):
            self._give_mixer_half(layer, part.mixer)
        elif isinstance(part, FusedAttention | attention.KernelAttention) and rope is not None:
            own = part if isinstance(part, FusedAttention) else part.own
            self._give_attention_half(layer, own, rope)

    def _give_mixer_half(self, layer: LeanLayer, each: PackedMixer) -> None:
        path = each.path
        own = path.own if isinstance(path, mixer.KernelDeltaRule) else path
        parts = mixer.delta_rule_parts(own) if isinstance(own, DeltaRule) else None
        if parts is None or not isinstance(path, DeltaRule | mixer.KernelDeltaRule):
            return
        around = half.half_parts(layer, own.projection, own.out)
        made = None if around is None else self._chooser.make(DeltaRuleHalfParts(around, parts))
        if made is None:
            return
        compared = partial(half.mixer_candidates, layer, each, path, made)
        if self._chooser.prefers(
            (FIRST_HALF, each.kind, *_kind_of(parts), around.projection.shape), compared
        ):
            self._changes.set(layer, "first_half_kernel", half.MixerHalf(each, made))

    def _give_attention_half(self, layer: LeanLayer, own: FusedAttention, rope: RopeTable) -> None:
        attends_in = attention.attention_layer(own, rope)
        around = half.half_parts(layer, own.qkv, own.out)
        if attends_in is None or around is None:
            return
        parts = attention.attention_parts(own)
        made = self._chooser.make(AttentionHalfParts(around, parts))
        if made is None:
            return
        compared = partial(half.attention_candidates, layer, own, made, rope)
        kind = (FIRST_HALF, *_kind_of(parts), rope.size, around.projection.shape)
        if self._chooser.prefers(kind, compared):
            self._changes.set(layer, "first_half_kernel", half.AttentionHalf(attends_in, made))

    def _give_experts(self, layer: LeanLayer) -> None:
        parts = experts.expert_parts(layer)
        if parts is None:
            return
        made = self._chooser.make(parts)
        if made is None:
            self._chooser.left[EXPERTS] += 1
            return
        compared = partial(experts.candidates, layer, made)
        if self._chooser.prefers((EXPERTS, type(layer.mlp), parts.gate_up.shape), compared):
            self._changes.set(layer, "feed_forward_kernel", made)

    def _give_norm(self, owner: LeanLayer | LeanHead, place: str) -> None:
        own: RMSNorm | None = getattr(owner, place)
        if own is None or own.weight is None:
            return
        made = self._chooser.make(NormParts(own.weight, own.eps))
        size = len(own.weight)
        if made is None:
            self._chooser.left[NORM] += 1
            return
        with_kernel = norm.KernelNorm(own, made)
        compared = partial(norm.candidates, own, with_kernel, size)
        if self._chooser.prefers((NORM, size, own.is_offset), compared):
            self._changes.set(owner, place, with_kernel)


def _kind_of(parts: AttentionParts | DeltaRuleParts) -> tuple[object, ...]:
    """Key that is equal for parts that differ in their weights only."""
    kind = []
    for field in fields(parts):
        value = getattr(parts, field.name)
        kind.append(value.shape if isinstance(value, torch.Tensor) else value)
    return tuple(kind)
