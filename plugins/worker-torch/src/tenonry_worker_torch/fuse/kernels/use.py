"""Kernels for the layers of one model: which parts get one, and how all of them are taken back. Worker process."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from tenonry_worker_torch.fuse.block import FusedAttention
from tenonry_worker_torch.fuse.decoder import LeanForward, LeanHead
from tenonry_worker_torch.fuse.kernels import attention, experts, mixer, norm
from tenonry_worker_torch.fuse.kernels.trial import prefers_kernel
from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.kernels.found import FoundKernels
    from tenonry_worker_torch.fuse.layer import LeanLayer
    from tenonry_worker_torch.fuse.norm import RMSNorm
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch.state.mixer import PackedMixer

logger = logging.getLogger("tenonry.worker")

DELTA_RULE = "delta rule"
ATTENTION = "attention"
EXPERTS = "experts"
NORM = "norm"
NORMS_OF_A_LAYER = ("before_attention", "after_attention", "before_mlp", "after_mlp")


class UsedKernels:
    """What a model computes with kernels. Layers of one kind are tried once."""

    def __init__(self, found: FoundKernels) -> None:
        self.found = found
        self.counts: Counter[str] = Counter()
        self.left: Counter[str] = Counter()  # parts that stay with torch
        self._verdicts: dict[tuple[object, ...], bool] = {}
        self._mixers: list[tuple[PackedMixer, DeltaRule]] = []
        self._layers: list[LeanLayer] = []
        self._attentions: list[tuple[LeanLayer, FusedAttention]] = []
        self._norms: list[tuple[LeanLayer | LeanHead, str, RMSNorm]] = []

    def give(self, forward: Forward, mixers: Sequence[PackedMixer]) -> None:
        """Kernels to all parts of a model in float32 that have one and are quicker with it."""
        for each in mixers:
            self._give_mixer(each)
        if isinstance(forward, LeanForward):
            for layer in forward.layers:
                rope = forward.ropes.get(layer.layer_type)
                if rope is not None and isinstance(layer.attention, FusedAttention):
                    self._give_attention(layer, layer.attention, rope)
            for layer in forward.layers:
                self._give_experts(layer)
                for place in NORMS_OF_A_LAYER:
                    self._give_norm(layer, place)
            if isinstance(forward.end, LeanHead):
                self._give_norm(forward.end, NORM)

    def take_back(self) -> None:
        """Let the operations of torch compute everything again."""
        for each, path in self._mixers:
            each.path = path
        for layer in self._layers:
            layer.feed_forward_kernel = None
        for layer, attends in self._attentions:
            layer.attention = attends
        for owner, place, own in self._norms:
            setattr(owner, place, own)
        self.counts.clear()

    @property
    def text(self) -> str:
        """For the log."""
        used = ", ".join(f"{count} × {part}" for part, count in self.counts.items())
        left = ", ".join(f"{count} × {part}" for part, count in self.left.items())
        text = f"Step kernels {self.found.text}: {used or 'none'}"
        return f"{text}; with torch: {left}" if left else text

    def _give_mixer(self, each: PackedMixer) -> None:
        path = each.path
        if not isinstance(path, DeltaRule):
            return
        parts = mixer.delta_rule_parts(path)
        made = None if parts is None else self.found.kernels.delta_rule(parts)
        if made is None:
            self.left[DELTA_RULE] += 1
            return
        with_kernel = mixer.KernelDeltaRule(path, made)
        compared = partial(mixer.candidates, each, path, with_kernel)
        sizes = (parts.key_heads, parts.heads, parts.key_size, parts.value_size)
        if self._prefers((DELTA_RULE, each.kind, *sizes), compared):
            each.path = with_kernel
            self._mixers.append((each, path))

    def _give_attention(
        self,
        layer: LeanLayer,
        own: FusedAttention,
        rope: RopeTable,
    ) -> None:
        attends_in = attention.attention_layer(own, rope)
        if attends_in is None:
            return
        parts = attention.attention_parts(own)
        made = self.found.kernels.attention(parts)
        if made is None:
            self.left[ATTENTION] += 1
            return
        compared = partial(attention.candidates, own, attends_in.spec, made, rope)
        kind = (
            ATTENTION,
            parts.heads,
            parts.kv_heads,
            parts.size,
            parts.is_gated,
            rope.size,
            parts.norm_weight is None,
            parts.scaling,
        )
        if self._prefers(kind, compared):
            layer.attention = attention.KernelAttention(own, attends_in, made)
            self._attentions.append((layer, own))

    def _give_experts(self, layer: LeanLayer) -> None:
        parts = experts.expert_parts(layer)
        if parts is None:
            return
        made = self.found.kernels.experts(parts)
        if made is None:
            self.left[EXPERTS] += 1
            return
        compared = partial(experts.candidates, layer, made)
        if self._prefers((EXPERTS, type(layer.mlp), parts.gate_up.shape), compared):
            layer.feed_forward_kernel = made
            self._layers.append(layer)

    def _give_norm(self, owner: LeanLayer | LeanHead, place: str) -> None:
        own: RMSNorm | None = getattr(owner, place)
        if own is None or own.weight is None:
            return
        made = self.found.kernels.rms_norm(own.weight, own.eps)
        size = len(own.weight)
        if made is None:
            self.left[NORM] += 1
            return
        with_kernel = norm.KernelNorm(own, made)
        compared = partial(norm.candidates, own, with_kernel, size)
        if self._prefers((NORM, size, own.is_offset), compared):
            setattr(owner, place, with_kernel)
            self._norms.append((owner, place, own))

    def _prefers(self, kind: tuple[object, ...], compared: object) -> bool:
        if kind not in self._verdicts:
            is_timed = not self.found.is_asked_for
            self._verdicts[kind] = prefers_kernel(compared, is_timed=is_timed)  # type: ignore[arg-type]
        part = str(kind[0])
        counts = self.counts if self._verdicts[kind] else self.left
        counts[part] += 1
        return self._verdicts[kind]
