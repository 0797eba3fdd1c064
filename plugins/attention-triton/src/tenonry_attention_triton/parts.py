"""The kernels between matrix products as functions of tensors. Worker process; imports Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton

from tenonry_attention_triton import between
from tenonry_attention_triton.launch_matrices import ROUND_BLOCK, RoundedRows

if TYPE_CHECKING:
    from tenonry_attention_triton.launch import Shape
    from tenonry_attention_triton.plan import TritonPlan
    from tenonry_torch_base.attention.base import LayerCache

GATE_BLOCK = 1024
GATE_ROUNDED_OPTIONS = {"num_warps": 8}
WIDE = 2048  # rows of more elements have more warps


class HeadWeights:
    """Norm of queries and keys before rotation: `weight` [heads + KV heads, size]."""

    __slots__ = ("eps", "weight")

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps


def turn_and_write(
    shape: Shape,
    cache: LayerCache,
    qkv: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    norm: HeadWeights | None,
    plan: TritonPlan,
) -> torch.Tensor:
    """Queries [T, heads, size] of `qkv` [T, columns], normed and rotated; keys and values go to the step's slots.

    `turn`: contiguous cos and sin [T, 1, rotated], the first half of sin negated.
    """
    spec = shape.spec
    cos, sin = turn
    query = qkv.new_empty(len(qkv), spec.num_heads, spec.key_size)
    between.turn_and_write[len(qkv), spec.num_heads + 2 * spec.num_kv_heads](
        qkv, cos, sin, qkv if norm is None else norm.weight, plan.slots, query, cache.key, cache.value,
        *shape.words(cache), 0.0 if norm is None else norm.eps, qkv.stride(0), cache.key.stride(0),
        cache.value.stride(0),
        HEADS=spec.num_heads, KV=spec.num_kv_heads, D=spec.key_size, DP=shape.sizes["DP"], ROTATED=cos.shape[-1],
        BS=plan.block_size, NORMED=norm is not None, WIDTH=shape.kept["KW"], KIND=shape.kept["KIND"], num_warps=1,
    )  # fmt: skip
    return query


def add_norm(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """Add `x` to `residual` [N, size] in place, if there is one; returns the norm of the sum, in a new tensor."""
    out = torch.empty_like(residual)
    _add_norm(x, residual, weight, eps, out, None)
    return out


def add_norm_rounded(
    x: torch.Tensor | None, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> RoundedRows:
    """As `add_norm`, and the rows are rounded to fp8."""
    made = RoundedRows.empty(*residual.shape, residual.device)
    _add_norm(x, residual, weight, eps, made.octets, made.scales)
    return made


def _add_norm(
    x: torch.Tensor | None,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    out: torch.Tensor,
    scales: torch.Tensor | None,
) -> None:
    rows, size = residual.shape
    between.add_norm[(rows,)](
        residual if x is None else x, residual, weight, out, weight if scales is None else scales, eps, SIZE=size,
        PADDED=triton.next_power_of_2(size), ADDS=x is not None, ROUNDS=scales is not None,
        num_warps=8 if size > WIDE else 4,
    )  # fmt: skip


def gate(both: torch.Tensor) -> torch.Tensor:
    """SiLU(gate) · up of `both` [N, 2 · inner] → [N, inner]."""
    inner = both.shape[1] // 2
    out = both.new_empty(len(both), inner)
    grid = (len(both), triton.cdiv(inner, GATE_BLOCK))
    between.gate[grid](both, out, inner, BLOCK=GATE_BLOCK, num_warps=4)
    return out


def gate_rounded(both: torch.Tensor) -> RoundedRows:
    """As `gate`, and the rows are rounded to fp8."""
    rows, inner = len(both), both.shape[1] // 2
    made = RoundedRows.empty(rows, inner, both.device)
    between.gate_rounded[(rows,)](
        both, made.octets, made.scales, inner, BLOCK=ROUND_BLOCK, **GATE_ROUNDED_OPTIONS
    )
    return made
