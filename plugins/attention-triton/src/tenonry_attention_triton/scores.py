"""Parts of attention that decoding and prefill share, as Triton functions. Worker process."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def first_seen(position, window, chunk):
    """The first position that a query at `position` sees; `window` and `chunk`: 0 for none."""
    first = position * 0
    if window > 0:
        first = tl.maximum(position - window + 1, 0)
    if chunk > 0:
        first = position // chunk * chunk
    return first


@triton.jit
def bounded(scores, softcap, CAPPED: tl.constexpr):
    """Softcap · tanh(scores / softcap). Below 0.15 by the series of tanh: the quotient of exponentials loses digits
    there.
    """
    if CAPPED:
        x = scores / softcap
        square = x * x
        series = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
        size = tl.abs(x)
        shrunk = tl.exp(-2 * size)
        quotient = (1 - shrunk) / (1 + shrunk)
        signed = tl.where(x < 0, -quotient, quotient)
        scores = softcap * tl.where(size < 0.15, series, signed)
    return scores
