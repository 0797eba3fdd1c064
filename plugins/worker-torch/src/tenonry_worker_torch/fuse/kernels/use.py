"""Kernels for the layers of one model: which parts get one, and how all of them are taken back. Worker process."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import torch

from tenonry_worker_torch.fuse.decoder import LeanForward
from tenonry_worker_torch.fuse.kernels import experts, mixer
from tenonry_worker_torch.fuse.kernels.trial import prefers_kernel
from tenonry_worker_torch.fuse.mixers.delta_rule import DeltaRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenonry_worker_torch.forward import Forward
    from tenonry_worker_torch.fuse.kernels.found import FoundKernels
    from tenonry_worker_torch.fuse.layer import LeanLayer
    from tenonry_worker_torch.state.mixer import PackedMixer

logger = logging.getLogger("tenonry.worker")

DELTA_RULE = "delta rule"
EXPERTS = "experts"


class UsedKernels:
    """What a model computes with kernels. Layers of one kind are tried once."""

    def __init__(self, found: FoundKernels) -> None:
        self.found = found
        self.counts: Counter[str] = Counter()
        self.left: Counter[str] = Counter()  # parts that stay with torch
        self._verdicts: dict[tuple[object, ...], bool] = {}
        self._mixers: list[tuple[PackedMixer, DeltaRule]] = []
        self._layers: list[LeanLayer] = []

    def give(self, forward: Forward, mixers: Sequence[PackedMixer]) -> None:
        """Kernels to all parts that have one, compute in float32, and are quicker with it."""
        for each in mixers:
            self._give_mixer(each)
        if isinstance(forward, LeanForward):
            for layer in forward.layers:
                self._give_experts(layer)

    def take_back(self) -> None:
        """Let the operations of torch compute everything again."""
        for each, path in self._mixers:
            each.path = path
        for layer in self._layers:
            layer.feed_forward_kernel = None
        self.counts.clear()

    @property
    def text(self) -> str:
        """For the log."""
        used = ", ".join(f"{part} of {count} layers" for part, count in self.counts.items())
        left = ", ".join(f"{part} of {count} layers" for part, count in self.left.items())
        text = f"Step kernels {self.found.text}: {used or 'none of them'}"
        return f"{text}; with torch: {left}" if left else text

    def _give_mixer(self, each: PackedMixer) -> None:
        path = each.path
        if not isinstance(path, DeltaRule):
            return
        if any(shape.dtype != torch.float32 for shape in each.state.shapes.values()):
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

    def _give_experts(self, layer: LeanLayer) -> None:
        parts = experts.expert_parts(layer)
        if parts is None or parts.router.dtype != torch.float32:
            return
        made = self.found.kernels.experts(parts)
        if made is None:
            self.left[EXPERTS] += 1
            return
        compared = partial(experts.candidates, layer, made)
        if self._prefers((EXPERTS, type(layer.mlp), parts.gate_up.shape), compared):
            layer.feed_forward_kernel = made
            self._layers.append(layer)

    def _prefers(self, kind: tuple[object, ...], compared: object) -> bool:
        if kind not in self._verdicts:
            is_timed = not self.found.is_asked_for
            self._verdicts[kind] = prefers_kernel(compared, is_timed=is_timed)  # type: ignore[arg-type]
        part = str(kind[0])
        counts = self.counts if self._verdicts[kind] else self.left
        counts[part] += 1
        return self._verdicts[kind]
