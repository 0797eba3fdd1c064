"""Triton kernels between the matrix products of a layer: norms, rotation with K/V to their slots, gates. Worker
process.

All compute in float32 and round once; rows for products in fp8 are rounded to the model's type, then to fp8.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.kept import octets_of, row_scale, store_vector


@triton.jit
def turn_and_write(
    qkv, cos, sin, norm, slots, query, keys, values, key_words, value_words, eps, qkv_token, key_stride, value_stride,
    HEADS: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, ROTATED: tl.constexpr,
    BS: tl.constexpr, NORMED: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A program per token and head of `qkv` [T, HEADS + 2 · KV, D]: queries to `query` [T, HEADS, D], K/V to their
    slots. Queries and keys are normed with `norm` [HEADS + KV, D] if NORMED, and their first ROTATED elements
    become x · cos + x rolled by half of them · sin. DP is D rounded up to a power of two; WIDTH elements of a kept
    vector, see `kept`.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    d = tl.arange(0, DP)
    inside = d < D
    line = qkv + token * qkv_token + head * D
    x = tl.load(line + d, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + token)
    if head < HEADS + KV:
        half: tl.constexpr = ROTATED // 2
        is_turned = d < ROTATED
        other_d = tl.where(d < half, d + half, d - half)
        other = tl.load(line + other_d, mask=is_turned, other=0.0).to(tl.float32)
        if NORMED:
            root = tl.rsqrt(tl.sum(x * x, 0) / D + eps)
            weight = norm + head * D
            x = x * root * tl.load(weight + d, mask=inside, other=0.0).to(tl.float32)
            of_other = tl.load(weight + other_d, mask=is_turned, other=0.0).to(tl.float32)
            other = other * root * of_other
        c = tl.load(cos + token * ROTATED + d, mask=is_turned, other=1.0).to(tl.float32)
        s = tl.load(sin + token * ROTATED + d, mask=is_turned, other=0.0).to(tl.float32)
        x = x * c + other * s
    x = x.to(query.dtype.element_ty)
    if head < HEADS:
        tl.store(query + (token * HEADS + head) * D + d, x, mask=inside)
    elif head < HEADS + KV:
        kept = (slot // BS) * key_stride + ((head - HEADS) * BS + slot % BS) * WIDTH
        store_vector(x, keys, key_words, kept, d, inside, WIDTH, KIND)
    else:
        kept = (slot // BS) * value_stride + ((head - HEADS - KV) * BS + slot % BS) * WIDTH
        store_vector(x, values, value_words, kept, d, inside, WIDTH, KIND)


@triton.jit
def add_norm(
    x, residual, weight, out, scales, eps,
    SIZE: tl.constexpr, PADDED: tl.constexpr, ADDS: tl.constexpr, ROUNDS: tl.constexpr,
):  # fmt: skip
    """A program per row: `residual` += `x`, and `out` is the norm of the sum; without ADDS, of `residual`. With ROUNDS
    `out` has octets of fp8, and `scales` f32 one for each row.
    """
    number = tl.program_id(0)
    row = number.to(tl.int64) * SIZE
    at = tl.arange(0, PADDED)
    inside = at < SIZE
    value = tl.load(residual + row + at, mask=inside, other=0.0)
    if ADDS:
        added = tl.load(x + row + at, mask=inside, other=0.0).to(tl.float32)
        value = (value.to(tl.float32) + added).to(residual.dtype.element_ty)
        tl.store(residual + row + at, value, mask=inside)
    value = value.to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    made = (value * root * scale).to(residual.dtype.element_ty)
    if ROUNDS:
        made = made.to(tl.float32)
        of_row = row_scale(tl.abs(made), made * 0.0)
        tl.store(scales + number, of_row)
        octets = octets_of(tl.div_rn(made, tl.zeros_like(made) + of_row))
        tl.store(out + row + at, octets, mask=inside)
    else:
        tl.store(out + row + at, made, mask=inside)


@triton.jit
def gated(line, at, inner):
    """SiLU of elements `at` of the first half of a row `line` [2 · inner], times those of the second, rounded once."""
    inside = at < inner
    g = tl.load(line + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(line + inner + at, mask=inside, other=0.0).to(tl.float32)
    return (g * tl.sigmoid(g) * up).to(line.dtype.element_ty)


@triton.jit
def gate(both, out, inner, BLOCK: tl.constexpr):
    """SiLU of the first half of each row of `both` [N, 2 · inner], times the second."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + row * inner + at, gated(both + row * 2 * inner, at, inner), mask=at < inner)


@triton.jit
def gate_rounded(both, rounded, scales, inner, BLOCK: tl.constexpr):
    """As `gate`, a program per row: octets of fp8 in `rounded`, and the scale of each row in `scales`, f32."""
    number = tl.program_id(0)
    row = number.to(tl.int64)
    line = both + row * 2 * inner
    most = tl.zeros([BLOCK], tl.float32)
    zero = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, inner, BLOCK):
        value = gated(line, begin + tl.arange(0, BLOCK), inner).to(tl.float32)
        most = tl.maximum(most, tl.abs(value))
        zero += value * 0.0
    scale = row_scale(most, zero)
    tl.store(scales + number, scale)
    for begin in range(0, inner, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = gated(line, at, inner).to(tl.float32)
        octets = octets_of(tl.div_rn(value, tl.zeros_like(value) + scale))
        tl.store(rounded + row * inner + at, octets, mask=at < inner)
