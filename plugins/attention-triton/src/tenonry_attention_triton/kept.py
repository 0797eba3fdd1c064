"""Vectors of K and V in 8 bits, as `tenonry_torch_base.attention.kv_storage` keeps them, in Triton. Worker process.

KIND: 0 for floats of the model's type, else `INT8` or `FP8`: octets of a vector, its scale in bfloat16 behind them.
Floats of 8 bits are taken apart by their bits, since cards before sm_89 have no such type.
"""

from __future__ import annotations

import triton
import triton.language as tl

FLOATS, INT8, FP8 = range(3)
KINDS = {"auto": FLOATS, "int8": INT8, "fp8": FP8}


@triton.jit
def numbers(octets, KIND: tl.constexpr):
    """The numbers of octets, f32, without their scale."""
    if KIND == 1:
        found = octets.to(tl.int8, bitcast=True).to(tl.float32)
    else:
        # The exponent of a half has one bit more, and a bias larger by 8.
        wide = octets.to(tl.uint16)
        half = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        found = half.to(tl.float16, bitcast=True).to(tl.float32) * 256.0
    return found


@triton.jit
def scale_of(bits):
    """A scale of the bits of a bfloat16, f32."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)


@triton.jit
def load_vectors(
    kept, words, lines, inside, dtype,
    D: tl.constexpr, DP: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Vectors [N, DP] that begin at elements `lines` of `kept`, in `dtype`; 0 where not `inside`, and after D numbers.
    `words`: the same memory as words of two octets, which are loaded together.
    """
    if KIND == 0:
        d = tl.arange(0, DP)
        mask = inside[:, None] & (d < D)[None, :]
        found = tl.load(kept + lines[:, None] + d[None, :], mask=mask, other=0)
    else:
        w = tl.arange(0, DP // 2)
        begin = lines // 2
        mask = inside[:, None] & (2 * w < D)[None, :]
        pairs = tl.load(words + begin[:, None] + w[None, :], mask=mask, other=0)
        bits = tl.load(words + begin + WIDTH // 2 - 1, mask=inside, other=0)
        scale = scale_of(bits)[:, None]
        first = (numbers((pairs & 0xFF).to(tl.uint8), KIND) * scale).to(dtype)
        second = (numbers(((pairs >> 8) & 0xFF).to(tl.uint8), KIND) * scale).to(dtype)
        found = tl.interleave(first, second)
    return found


@triton.jit
def store_vector(x, kept, words, line, d, inside, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """The vector `x` [D], from element `line` of `kept` on."""
    if KIND == 0:
        tl.store(kept + line + d, x.to(kept.dtype.element_ty), mask=inside)
    else:
        x = tl.where(inside, x.to(tl.float32), 0.0)
        largest: tl.constexpr = 127.0 if KIND == 1 else 448.0
        bits = tl.div_rn(tl.max(tl.abs(x), 0), largest).to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to bfloat16
        bits = tl.maximum(bits, 0x80)
        zero = tl.sum(x * 0.0, 0)  # NaN if a number is not finite
        bits = tl.where(zero == 0.0, bits, 0x7FC0)
        y = tl.div_rn(x, tl.zeros_like(x) + scale_of(bits))
        if KIND == 1:
            whole = (y + 12582912.0) - 12582912.0  # to the nearest whole number, ties to even
            octets = whole.to(tl.int8).to(tl.uint8, bitcast=True)
        else:
            octets = octets_of(y)
        tl.store(kept + line + d, octets, mask=inside)
        tl.store(words + (line + WIDTH) // 2 - 1, bits.to(tl.int16))


@triton.jit
def row_scale(most, zero):
    """Scale in fp8 of a row with absolute numbers `most`; NaN where `zero`, 0 · row, is not 0."""
    scale = tl.maximum(tl.div_rn(tl.max(most, 0), 448.0), 1e-12)
    return tl.where(tl.sum(zero, 0) == 0.0, scale, float("nan"))


@triton.jit
def octets_of(y):
    """The nearest floats of 8 bits, ties to even, of |y| below 464."""
    size = tl.abs(y)
    bits = size.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    small = ((size * 512.0 + 12582912.0) - 12582912.0).to(tl.int32)
    code = tl.where(size < 0.015625, small, normal)
    sign = (y.to(tl.int32, bitcast=True) >> 24) & 0x80
    return (code | sign).to(tl.uint8)
