"""K and V in 8 bits, from the formulas alone: numpy, and a table of the numbers of a byte of E4M3."""

from __future__ import annotations

import numpy as np

LARGEST = {"int8": 127.0, "fp8": 448.0}
TINY = np.float32(2.0**-126)


def scales(vectors, kind):
    """f32[..., 1]: max |x| / largest, to the nearest bfloat16 by its bits."""
    exact = np.abs(vectors.astype(np.float32)).max(-1, keepdims=True) / np.float32(LARGEST[kind])
    bits = exact.view(np.uint32)
    bits = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.maximum(bits.view(np.float32), TINY)


def e4m3():
    """The numbers of E4M3 from 0 up to 448, in the order of their bytes."""
    code = np.arange(127)
    exponent = code >> 3
    mantissa = code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)


def nearest_e4m3(numbers):
    """The nearest of the table; between two, that with an even byte."""
    table = e4m3()
    size = np.abs(numbers.astype(np.float64))
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    below = above - 1
    to_below = size - table[below]
    to_above = table[above] - size
    is_below = (to_below < to_above) | ((to_below == to_above) & (below % 2 == 0))
    return np.copysign(table[np.where(is_below, below, above)], numbers)


def rounded(vectors, kind):
    """Stored values of float32 vectors [..., size], f64; the quotient is that of float32."""
    if kind == "auto":
        return vectors.astype(np.float64)
    scale = scales(vectors, kind)
    numbers = vectors.astype(np.float32) / scale
    nearest = np.rint(numbers) if kind == "int8" else nearest_e4m3(numbers)
    return nearest.astype(np.float64) * scale
