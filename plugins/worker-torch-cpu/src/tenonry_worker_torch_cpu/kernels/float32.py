"""Step kernels for the layers of a model in float32. Worker process."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_torch_base.kernel_parts import AttentionHalfParts, DeltaRuleHalfParts, NormParts
from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch.fuse.decoder import FusedForward, FusedHead
from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule
from tenonry_worker_torch.fuse.mixers.part import FusedMixer
from tenonry_worker_torch_cpu.kernels import attention, experts, half, mixer, norm
from tenonry_worker_torch_cpu.kernels.candidate import Candidate, Trial, setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tenonry_torch_base.step_kernels import AttentionParts, DeltaRuleParts
    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.layer import FusedLayer
    from tenonry_worker_torch.fuse.norm import RMSNorm
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch.state.mixer import PackedMixer


DELTA_RULE = "delta rule"
ATTENTION = "attention"
EXPERTS = "experts"
NORM = "norm"
FIRST_HALF = "first half"
NORMS_OF_A_LAYER = ("before_attention", "after_attention", "before_mlp", "after_mlp")


def float32_parts(
    forward: Forward,
    mixers: Sequence[PackedMixer],
    *,
    has_adapters: bool = False,
    reads_cache: bool = True,
) -> Iterator[Candidate]:
    """Candidates of a model in float32.

    Linear layers with adapters exclude kernels that bypass them, those of experts and of first halves. `reads_cache`:
    kernels support the KV cache's storage; otherwise attention has none.
    """
    for each in mixers:
        yield from _mixer(each)
    if not isinstance(forward, FusedForward):
        return
    ropes = forward.ropes if reads_cache else {}
    for layer in forward.layers:
        rope = ropes.get(layer.layer_type)
        if rope is not None and isinstance(layer.attention, FusedAttention):
            yield from _attention(layer, layer.attention, rope)
    for layer in forward.layers:
        if not has_adapters:
            yield from _experts(layer)
        for place in NORMS_OF_A_LAYER:
            yield from _norm(layer, place)
        if not has_adapters:
            yield from _half(layer, ropes.get(layer.layer_type))
    if isinstance(forward.end, FusedHead):
        yield from _norm(forward.end, NORM)


def _mixer(each: PackedMixer) -> Iterator[Candidate]:
    path = each.path
    if not isinstance(path, DeltaRule):
        return
    parts = mixer.delta_rule_parts(path)
    made = partial(mixer.KernelDeltaRule, path)
    yield Candidate(
        kind=(DELTA_RULE, each.kind, *_kind_of(parts)),
        parts=parts,
        trial=Trial.SIZES,
        compared=lambda kernel: partial(mixer.candidates, each, path, made(kernel)),
        assign=setting(each, "path", made),
    )


def _attention(layer: FusedLayer, own: FusedAttention, rope: RopeTable) -> Iterator[Candidate]:
    attends_in = attention.attention_layer(own, rope)
    if attends_in is None:
        return
    parts = attention.attention_parts(own)
    yield Candidate(
        kind=(ATTENTION, *_kind_of(parts), rope.size),
        parts=parts,
        trial=Trial.SIZES,
        compared=lambda kernel: partial(attention.candidates, own, kernel, rope),
        assign=setting(layer, "attention", partial(attention.KernelAttention, own, attends_in)),
    )


def _half(layer: FusedLayer, rope: RopeTable | None) -> Iterator[Candidate]:
    """Yield a kernel for the whole half, which must be faster than the kernels of its inner parts."""
    part = layer.attention
    if isinstance(part, FusedMixer):
        yield from _mixer_half(layer, part.mixer)
    elif isinstance(part, FusedAttention | attention.KernelAttention) and rope is not None:
        own = part if isinstance(part, FusedAttention) else part.own
        yield from _attention_half(layer, own, rope)


def _mixer_half(layer: FusedLayer, each: PackedMixer) -> Iterator[Candidate]:
    path = each.path
    own = path.own if isinstance(path, mixer.KernelDeltaRule) else path
    parts = mixer.delta_rule_parts(own) if isinstance(own, DeltaRule) else None
    if parts is None or not isinstance(path, DeltaRule | mixer.KernelDeltaRule):
        return
    around = half.half_parts(layer, own.projection, own.out)
    if around is None:
        return
    yield Candidate(
        kind=(FIRST_HALF, each.kind, *_kind_of(parts), around.projection.shape),
        parts=DeltaRuleHalfParts(around, parts),
        trial=Trial.SIZES,
        compared=lambda kernel: partial(half.mixer_candidates, layer, each, path, kernel),
        assign=setting(layer, "first_half_kernel", partial(half.MixerHalf, each)),
        reports_refusal=False,
    )


def _attention_half(layer: FusedLayer, own: FusedAttention, rope: RopeTable) -> Iterator[Candidate]:
    attends_in = attention.attention_layer(own, rope)
    around = half.half_parts(layer, own.qkv, own.out)
    if attends_in is None or around is None:
        return
    parts = attention.attention_parts(own)
    yield Candidate(
        kind=(FIRST_HALF, *_kind_of(parts), rope.size, around.projection.shape),
        parts=AttentionHalfParts(around, parts),
        trial=Trial.SIZES,
        compared=lambda kernel: partial(half.attention_candidates, layer, own, kernel, rope),
        assign=setting(layer, "first_half_kernel", partial(half.AttentionHalf, attends_in)),
        reports_refusal=False,
    )


def _experts(layer: FusedLayer) -> Iterator[Candidate]:
    parts = experts.expert_parts(layer)
    if parts is None:
        return
    yield Candidate(
        kind=(EXPERTS, type(layer.mlp), parts.gate_up.shape),
        parts=parts,
        trial=Trial.SIZES,
        compared=lambda kernel: partial(experts.candidates, layer, kernel),
        assign=setting(layer, "feed_forward_kernel"),
    )


def _norm(owner: FusedLayer | FusedHead, place: str) -> Iterator[Candidate]:
    own: RMSNorm | None = getattr(owner, place)
    if own is None or own.weight is None:
        return
    size = len(own.weight)
    made = partial(norm.KernelNorm, own)
    yield Candidate(
        kind=(NORM, size, own.is_offset),
        parts=NormParts(own.weight, own.eps),
        trial=Trial.SIZES,
        compared=lambda kernel: partial(norm.candidates, own, made(kernel), size),
        assign=setting(owner, place, made),
    )


def _kind_of(parts: AttentionParts | DeltaRuleParts | None) -> tuple[object, ...]:
    """Key that is equal for parts that differ in their weights only."""
    if parts is None:
        return ()
    kind = []
    for field in fields(parts):
        value = getattr(parts, field.name)
        kind.append(value.shape if isinstance(value, torch.Tensor) else value)
    return tuple(kind)
