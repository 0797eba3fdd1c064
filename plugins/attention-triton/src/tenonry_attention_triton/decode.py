"""Triton kernels of rows with one query each: keys of a row in splits, and the splits joined. Worker process.

Blocks are as in `tenonry_torch_base.attention.sdpa`: [blocks, heads, block_size, size], contiguous within a block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.kept import load_vectors
from tenonry_attention_triton.scores import bounded, first_seen

MAX_SPLITS = 64


@triton.jit(do_not_specialize=["width", "window", "chunk"])
def decode_split(
    q, keys, values, key_words, value_words, table, lengths, tokens, sinks, part, stats, out,
    scale, softcap, width, window, chunk, key_stride, value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    V: tl.constexpr, VP: tl.constexpr, BS: tl.constexpr, TILE: tl.constexpr, CAPPED: tl.constexpr,
    WHOLE: tl.constexpr, HAS_SINKS: tl.constexpr, KW: tl.constexpr, VW: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A program per row, KV head and split: the unscaled sum of its values, f32, with its maximum and its total. WHOLE:
    the one split of a row is written to `out`, and nothing is joined.

    LINES, DP and VP are GROUP, D and V rounded up to powers of two; KW and VW elements of a kept key and value, see
    `kept`. Splits are of whole tiles, from the first key that
    the row sees on; those without keys have the maximum −∞.
    """
    row = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    length = tl.load(lengths + row)
    first = first_seen(length - 1, window, chunk)
    tiles = tl.cdiv(length, TILE) - first // TILE
    per = tl.cdiv(tiles, splits)
    begin = (first // TILE + split * per) * TILE
    end = tl.minimum(begin + per * TILE, length)

    group = tl.arange(0, LINES)
    d = tl.arange(0, DP)
    v = tl.arange(0, VP)
    is_head = group < GROUP
    token = tl.load(tokens + row).to(tl.int64)
    lines = (token * HEADS + kv * GROUP + group) * D
    query = tl.load(
        q + lines[:, None] + d[None, :], mask=is_head[:, None] & (d < D)[None, :], other=0.0
    )
    best = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    acc = tl.zeros([LINES, VP], tl.float32)
    for at in range(begin, end, TILE):
        place = at + tl.arange(0, TILE)
        seen = (place < end) & (place >= first)
        block = tl.load(table + row * width + place // BS, mask=seen, other=0).to(tl.int64)
        slot = kv * BS + place % BS
        key_lines = block * key_stride + slot * KW
        key = load_vectors(keys, key_words, key_lines, seen, query.dtype, D, DP, KW, KIND)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = bounded(scores, softcap, CAPPED)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        now = tl.maximum(best, tl.max(scores, 1))
        # Until a key is seen the maximum is −∞: no NaN from −∞ − −∞.
        safe = tl.where(now == float("-inf"), 0.0, now)
        weights = tl.exp(scores - safe[:, None])
        old = tl.exp(best - safe)
        value_lines = block * value_stride + slot * VW
        value = load_vectors(values, value_words, value_lines, seen, query.dtype, V, VP, VW, KIND)
        total = total * old + tl.sum(weights, 1)
        acc = acc * old[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        best = now
    if WHOLE:
        if HAS_SINKS:
            sink = tl.load(sinks + kv * GROUP + group, mask=is_head, other=0.0).to(tl.float32)
            most = tl.maximum(best, sink)
            old = tl.exp(best - most)
            total = total * old + tl.exp(sink - most)
            acc = acc * old[:, None]
        made = acc / tl.where(is_head, total, 1.0)[:, None]
        heads = (token * HEADS + kv * GROUP + group) * V
        tl.store(
            out + heads[:, None] + v[None, :],
            made.to(out.dtype.element_ty),
            mask=is_head[:, None] & (v < V)[None, :],
        )
    else:
        place = (row * HEADS + kv * GROUP + group).to(tl.int64) * splits + split
        tl.store(
            part + place[:, None] * V + v[None, :], acc, mask=is_head[:, None] & (v < V)[None, :]
        )
        tl.store(stats + place * 2, best, mask=is_head)
        tl.store(stats + place * 2 + 1, total, mask=is_head)


@triton.jit(do_not_specialize=["splits"])
def decode_join(
    part, stats, tokens, sinks, out, splits,
    HEADS: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, MOST: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """A program per row and head: the mean over its at most MOST splits; a sink adds to the total alone."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    s = tl.arange(0, MOST)
    v = tl.arange(0, VP)
    line = (row * HEADS + head).to(tl.int64) * splits + s
    inside = s < splits
    best = tl.load(stats + line * 2, mask=inside, other=float("-inf"))
    total = tl.load(stats + line * 2 + 1, mask=inside, other=0.0)
    most = tl.max(best, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
        most = tl.maximum(most, sink)
    weight = tl.exp(best - most)
    whole = tl.sum(total * weight, 0)
    if HAS_SINKS:
        whole += tl.exp(sink - most)
    acc = tl.load(
        part + line[:, None] * V + v[None, :], mask=inside[:, None] & (v < V)[None, :], other=0.0
    )
    made = tl.sum(acc * weight[:, None], 0) / whole
    token = tl.load(tokens + row).to(tl.int64)
    tl.store(out + (token * HEADS + head) * V + v, made.to(out.dtype.element_ty), mask=v < V)
