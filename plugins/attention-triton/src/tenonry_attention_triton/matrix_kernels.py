"""Triton kernel of rows times a quantised matrix, which is dequantised tile by tile. Worker process."""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.kept import numbers, octets_of, row_scale

FOUR_BITS = 4  # in addition to the kinds of `kept`


@triton.jit(do_not_specialize=["rows"])
def product(
    x, packed, scales, zeros, bias, out, rows, outputs, chunks, x_row,
    CHUNK: tl.constexpr, PER_GROUP: tl.constexpr, KIND: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_BIAS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """A program per N outputs and M rows of `x`: x · matrix, accumulated in float32.

    `packed` u8[chunks, outputs, octets] has CHUNK columns in each chunk: an octet each, or two columns in one, of the
    first half of the chunk and of the second. `scales` and `zeros` f32[groups, outputs]: a group is PER_GROUP chunks.
    """
    n = tl.program_id(0) * N + tl.arange(0, N)
    m = tl.program_id(1) * M + tl.arange(0, M)
    octets: tl.constexpr = CHUNK // 2 if KIND == 4 else CHUNK
    place = tl.arange(0, octets)
    is_output = n < outputs
    is_row = (m < rows)[:, None]
    acc = tl.zeros([M, N], tl.float32)
    for chunk in range(chunks):
        line = (chunk * outputs + n).to(tl.int64) * octets
        held = tl.load(packed + line[:, None] + place[None, :], mask=is_output[:, None], other=0)
        given = x + m[:, None].to(tl.int64) * x_row + chunk * CHUNK + place[None, :]
        first = tl.load(given, mask=is_row, other=0.0)
        group = chunk // PER_GROUP * outputs + n
        scale = tl.load(scales + group, mask=is_output, other=0.0)
        total = tl.sum(first.to(tl.float32), 1)
        if KIND == 4:
            second = tl.load(given + octets, mask=is_row, other=0.0)
            total += tl.sum(second.to(tl.float32), 1)
            low = ((held & 15).to(tl.float32) - 8.0).to(first.dtype)
            high = ((held >> 4).to(tl.float32) - 8.0).to(first.dtype)
            part = tl.dot(first, tl.trans(low), input_precision="ieee")
            part = tl.dot(second, tl.trans(high), part, input_precision="ieee")
        else:
            matrix = numbers(held, KIND).to(first.dtype)
            part = tl.dot(first, tl.trans(matrix), input_precision="ieee")
        if HAS_ZEROS:
            zero = tl.load(zeros + group, mask=is_output, other=0.0)
            part -= total[:, None] * zero[None, :]
        acc += part * scale[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + n, mask=is_output, other=0.0).to(tl.float32)[None, :]
    tl.store(
        out + m[:, None].to(tl.int64) * outputs + n[None, :],
        acc.to(out.dtype.element_ty),
        mask=is_row & is_output[None, :],
    )


@triton.jit
def round_rows(x, rounded, scales, size, BLOCK: tl.constexpr):
    """A program per row of `x` [N, size]: octets of fp8 with one scale, f32; NaN for a row that is not finite."""
    row = tl.program_id(0).to(tl.int64)
    line = x + row * size
    most = tl.zeros([BLOCK], tl.float32)
    zero = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(line + at, mask=at < size, other=0.0).to(tl.float32)
        most = tl.maximum(most, tl.abs(value))
        zero += value * 0.0
    scale = row_scale(most, zero)
    tl.store(scales + row, scale)
    for begin in range(0, size, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        value = tl.load(line + at, mask=at < size, other=0.0).to(tl.float32)
        octets = octets_of(tl.div_rn(value, tl.zeros_like(value) + scale))
        tl.store(rounded + row * size + at, octets, mask=at < size)
