"""Kernels for operations between a fused model's products in bfloat16, for any number of tokens. Worker process."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.kernel_parts import Bfloat16NormParts, GateParts, TurnParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP, is_silu
from tenonry_worker_torch.fuse.decoder import LeanHead
from tenonry_worker_torch.fuse.norm import RMSNorm
from tenonry_worker_torch_cpu.kernels.attention import attention_parts
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable

    from tenonry_torch_base.attention_parts import TurnKernel
    from tenonry_worker_torch.changes import Changes
    from tenonry_worker_torch.fuse.decoder import LeanForward
    from tenonry_worker_torch.fuse.rope import RopeTable
    from tenonry_worker_torch_cpu.kernels.chooser import KernelChooser

NORM = "norm"
TURN = "rotation"
GATE = "gate"
NORMS_OF_A_LAYER = ("before_attention", "after_attention", "before_mlp", "after_mlp")
TOKENS = 256  # of a trial
INNER = 1024
TOLERANCE = 1e-2  # relative error (L2): our operations round to 16 bits after each step


class PackedNorm(RMSNorm):
    """A norm by a kernel, for contiguous rows in bfloat16. `own`: the original norm, which computes all others."""

    __slots__ = ("kernel", "own")

    def __init__(self, own: RMSNorm, kernel: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.own = own
        self.kernel = kernel
        self.weight = own.weight
        self.eps = own.eps
        self.is_offset = own.is_offset

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() != 2 or x.dtype != torch.bfloat16 or not x.is_contiguous():
            return self.own(x)
        return self.kernel(x)


class BetweenKernels:
    """Assigns the chosen kernels."""

    def __init__(self, chooser: KernelChooser, changes: Changes) -> None:
        self._chooser = chooser
        self._changes = changes

    def give(self, forward: LeanForward) -> None:
        """Assign kernels to all parts of a kind whose first one is correct and faster with it."""
        for layer in forward.layers:
            for place in NORMS_OF_A_LAYER:
                self._give_norm(layer, place)
            rope = forward.ropes.get(layer.layer_type)
            if isinstance(layer.attention, FusedAttention) and rope is not None:
                self._give_turn(layer.attention, rope)
            if isinstance(layer.mlp, FusedMLP):
                self._give_gate(layer.mlp)
        if isinstance(forward.end, LeanHead):
            self._give_norm(forward.end, NORM)

    def _give_norm(self, owner: Any, place: str) -> None:
        own: RMSNorm | None = getattr(owner, place)
        if own is None or own.weight is None:
            return
        made = self._chooser.make(Bfloat16NormParts(own.weight.float(), own.eps))
        if made is None:
            return
        with_kernel = PackedNorm(own, made)
        size = len(own.weight)
        if self._chooser.is_better(
            (NORM, size, own.is_offset), partial(norm_candidates, own, with_kernel)
        ):
            self._changes.set(owner, place, with_kernel)

    def _give_turn(self, own: FusedAttention, rope: RopeTable) -> None:
        if own.gate_order is not None:
            return
        parts = attention_parts(own)
        made = self._chooser.make(TurnParts(parts))
        if made is None:
            return
        has_norm = own.head_norm is not None
        kind = (TURN, parts.heads, parts.kv_heads, parts.size, has_norm, rope.size)
        if self._chooser.is_better(kind, partial(turn_candidates, own, made, rope)):
            self._changes.set(own, "turn_kernel", made)

    def _give_gate(self, own: FusedMLP) -> None:
        if not is_silu(own.activation):
            return
        made = self._chooser.make(GateParts())
        if made is not None and self._chooser.is_better(
            (GATE,), partial(gate_candidates, own, made)
        ):
            self._changes.set(own, "gate_kernel", made)


def norm_candidates(own: RMSNorm, kernel: PackedNorm) -> Candidates:
    """Both over random rows."""
    x = torch.randn(TOKENS, len(kernel.weight)).bfloat16()
    return Candidates(lambda: (own(x),), lambda: (kernel(x),), TOLERANCE)


def turn_candidates(own: FusedAttention, kernel: TurnKernel, rope: RopeTable) -> Candidates:
    """Both over random heads, which are rotated repeatedly, and values, which are not."""
    spec = own.spec
    columns = (spec.num_heads + 2 * spec.num_kv_heads) * spec.key_size
    first = torch.randn(TOKENS, columns).bfloat16()
    second = first.clone()
    cos, sin = rope.at(torch.arange(TOKENS) % len(rope.cos))
    turning = copy.copy(own)
    turning.turn_kernel = None

    def with_torch() -> tuple[torch.Tensor]:
        turning.turn(first.view(TOKENS, -1, spec.key_size), cos, sin)
        return (first,)

    def with_kernel() -> tuple[torch.Tensor]:
        kernel(second, cos, sin)
        return (second,)

    return Candidates(with_torch, with_kernel, TOLERANCE)


def gate_candidates(own: FusedMLP, kernel: Callable[[torch.Tensor], torch.Tensor]) -> Candidates:
    """Both over random gates and their inputs."""
    both = torch.randn(TOKENS, 2 * INNER).bfloat16()
    plain = copy.copy(own)
    plain.gate_kernel = None
    return Candidates(lambda: (plain.gated(both),), lambda: (kernel(both),), TOLERANCE)
