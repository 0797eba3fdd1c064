"""Kernels for operations between a fused model's products in bfloat16, for any number of tokens. Worker process."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tenonry_torch_base.kernel_parts import Bfloat16NormParts, GateParts, TurnParts
from tenonry_worker_torch.fuse.block import FusedAttention, FusedMLP, is_silu
from tenonry_worker_torch.fuse.decoder import FusedHead
from tenonry_worker_torch.fuse.norm import RMSNorm
from tenonry_worker_torch_cpu.kernels.attention import attention_parts
from tenonry_worker_torch_cpu.kernels.candidate import Candidate, Trial, setting
from tenonry_worker_torch_cpu.kernels.trial import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tenonry_torch_base.attention_parts import TurnKernel
    from tenonry_worker_torch.fuse.decoder import FusedForward
    from tenonry_worker_torch.fuse.rope import RopeTable

NORM = "norm"
TURN = "rotation"
GATE = "gate"
NORMS_OF_A_LAYER = ("before_attention", "after_attention", "before_mlp", "after_mlp")
TOKENS = 256  # of a trial
INNER = 1024
TOLERANCE = 1e-2  # relative error (L2): our operations round to 16 bits after each step


class PackedNorm(RMSNorm):
    """A norm by a kernel, for contiguous rows in bfloat16. `own`: the original norm, for all others."""

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


def between_products(forward: FusedForward) -> Iterator[Candidate]:
    """Candidates of all layers and of the head: norms, rotations and gates."""
    for layer in forward.layers:
        for place in NORMS_OF_A_LAYER:
            yield from _norm(layer, place)
        rope = forward.ropes.get(layer.layer_type)
        if isinstance(layer.attention, FusedAttention) and rope is not None:
            yield from _turn(layer.attention, rope)
        if isinstance(layer.mlp, FusedMLP) and is_silu(layer.mlp.activation):
            yield _between(
                (GATE,), GateParts(), partial(gate_candidates, layer.mlp), layer.mlp, "gate_kernel"
            )
    if isinstance(forward.end, FusedHead):
        yield from _norm(forward.end, NORM)


def _norm(owner: Any, place: str) -> Iterator[Candidate]:
    own: RMSNorm | None = getattr(owner, place)
    if own is None or own.weight is None:
        return
    yield Candidate(
        kind=(NORM, len(own.weight), own.is_offset),
        parts=Bfloat16NormParts(own.weight.float(), own.eps),
        trial=Trial.ONCE,
        compared=lambda kernel: partial(norm_candidates, own, PackedNorm(own, kernel)),
        assign=setting(owner, place, partial(PackedNorm, own)),
        reports_refusal=False,
    )


def _turn(own: FusedAttention, rope: RopeTable) -> Iterator[Candidate]:
    if own.gate_order is not None:
        return
    parts = attention_parts(own)
    has_norm = own.head_norm is not None
    kind = (TURN, parts.heads, parts.kv_heads, parts.size, has_norm, rope.size)
    compared = partial(turn_candidates, own, rope)
    yield _between(kind, TurnParts(parts), compared, own, "turn_kernel")


def _between(
    kind: tuple[object, ...],
    parts: object,
    compared: Callable[[Any], Candidates],
    owner: object,
    place: str,
) -> Candidate:
    return Candidate(
        kind=kind,
        parts=parts,
        trial=Trial.ONCE,
        compared=lambda kernel: partial(compared, kernel),
        assign=setting(owner, place),
        reports_refusal=False,
    )


def norm_candidates(own: RMSNorm, kernel: PackedNorm) -> Candidates:
    """Both over random rows."""
    x = torch.randn(TOKENS, len(kernel.weight)).bfloat16()
    return Candidates(lambda: (own(x),), lambda: (kernel(x),), TOLERANCE)


def turn_candidates(own: FusedAttention, rope: RopeTable, kernel: TurnKernel) -> Candidates:
    """Return candidates over random heads, which are rotated repeatedly, and values, which are not."""
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
