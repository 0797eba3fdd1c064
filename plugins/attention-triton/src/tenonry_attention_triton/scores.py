"""Parts of attention that decoding and prefill share, as Triton functions. Worker process."""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.kept import load_vectors


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


@triton.jit
def with_tile(
    query, keys, values, key_words, value_words, block, slot, key_stride, value_stride, inside, seen, scale, softcap,
    best, total, acc,
    D: tl.constexpr, DP: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, CAPPED: tl.constexpr,
    KW: tl.constexpr, VW: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Maximum, total and unscaled sum of values of each line of `query`, with the keys of one tile in slots of blocks:
    those `inside` are read, those `seen` [lines or 1, TILE] count.
    """
    key_lines = block * key_stride + slot * KW
    key = load_vectors(keys, key_words, key_lines, inside, query.dtype, D, DP, KW, KIND)
    scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
    scores = bounded(scores, softcap, CAPPED)
    scores = tl.where(seen, scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, 1))
    # Until a key is seen the maximum is −∞: no NaN from −∞ − −∞.
    safe = tl.where(now == float("-inf"), 0.0, now)
    weights = tl.exp(scores - safe[:, None])
    old = tl.exp(best - safe)
    value_lines = block * value_stride + slot * VW
    value = load_vectors(values, value_words, value_lines, inside, query.dtype, V, VP, VW, KIND)
    total = total * old + tl.sum(weights, 1)
    acc = acc * old[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return now, total, acc
