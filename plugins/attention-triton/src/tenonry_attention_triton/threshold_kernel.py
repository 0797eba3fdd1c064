"""Triton kernel of top-k and top-p: the smallest weight of each row that stays, without sorting. Worker process.

Floats that are not negative order like their bits, so a search by halves over the bits ends after 31 passes over a row.
Masses are summed as whole numbers in units of 2^−62: their order changes no bit of the result.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def beyond(line, size, bits, BLOCK: tl.constexpr):
    """Number and mass of the weights above the float of `bits`."""
    count = tl.zeros([BLOCK], tl.int32)
    mass = tl.zeros([BLOCK], tl.int64)
    for at in range(0, size, BLOCK):
        place = at + tl.arange(0, BLOCK)
        weight = tl.load(line + place, mask=place < size, other=0.0)
        is_beyond = weight.to(tl.int32, bitcast=True) > bits
        count += is_beyond.to(tl.int32)
        mass += tl.where(is_beyond, (weight * 4611686018427387904.0).to(tl.int64), 0)
    return tl.sum(count, 0), tl.sum(mass, 0)


@triton.jit
def share(mass):
    """A mass as a float."""
    return mass.to(tl.float64) * (1.0 / 4611686018427387904.0)


@triton.jit
def largest(line, size, BLOCK: tl.constexpr):
    """Bits of the largest weight of a row."""
    most = tl.zeros([BLOCK], tl.int32)
    for at in range(0, size, BLOCK):
        place = at + tl.arange(0, BLOCK)
        weight = tl.load(line + place, mask=place < size, other=0.0)
        most = tl.maximum(most, weight.to(tl.int32, bitcast=True))
    return tl.max(most, 0)


@triton.jit
def thresholds(weights, top_k, top_p, sums, limits, size, BLOCK: tl.constexpr):
    """A program per row of `weights` f32[N, size] ≥ 0 with sum `sums` of 1: `limits` f32[N], 0 for rows without top-k
    and top-p.

    The k-th largest weight is the smallest one with fewer than k above it. Of the top k, or of all, those stay with
    less than `top_p` of the mass above them, and the largest one.
    """
    row = tl.program_id(0).to(tl.int64)
    line = weights + row * size
    k = tl.load(top_k + row)
    p = tl.load(top_p + row)
    low = 0
    if (k > 0) | (p < 1):
        top = largest(line, size, BLOCK)
        total = tl.load(sums + row).to(tl.float64)
        if k > 0:
            high = top
            while low < high:
                middle = low + (high - low) // 2
                count, _ = beyond(line, size, middle, BLOCK)
                if count < k:
                    high = middle
                else:
                    low = middle + 1
            count, mass = beyond(line, size, low, BLOCK)
            least = low.to(tl.float32, bitcast=True).to(tl.float64)
            total = share(mass) + (k - count).to(tl.float64) * least
        if p < 1:
            goal = p.to(tl.float64) * total
            high = top
            while low < high:
                middle = low + (high - low) // 2
                _, mass = beyond(line, size, middle, BLOCK)
                if share(mass) < goal:
                    high = middle
                else:
                    low = middle + 1
    tl.store(limits + row, low.to(tl.float32, bitcast=True))
