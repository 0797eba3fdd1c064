"""Triton kernels of rows with one query each: keys of a row in splits, and the splits joined. Worker process.

Blocks are as in `tenonry_torch_base.attention.sdpa`: [blocks, heads, block_size, size], contiguous within a block.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.scores import first_seen, with_tile

MAX_SPLITS = 64


@triton.jit
def keys_of(length, split, splits, window, chunk, TILE: tl.constexpr):
    """The first key that a row sees, and the keys of one of its splits, which are of whole tiles; maybe none."""
    first = first_seen(length - 1, window, chunk)
    tiles = tl.cdiv(length, TILE) - first // TILE
    per = tl.cdiv(tiles, splits)
    begin = (first // TILE + split * per) * TILE
    return first, begin, tl.minimum(begin + per * TILE, length)


@triton.jit
def with_sink(sinks, is_head, best, total, acc):
    """Total and sum of each line after a sink, which adds to the total alone."""
    sink = tl.load(sinks, mask=is_head, other=0.0).to(tl.float32)
    most = tl.maximum(best, sink)
    old = tl.exp(best - most)
    return total * old + tl.exp(sink - most), acc * old[:, None]


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
    `kept`.
    """
    row = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    splits = tl.num_programs(2)
    length = tl.load(lengths + row)
    first, begin, end = keys_of(length, split, splits, window, chunk, TILE)
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
        best, total, acc = with_tile(
            query, keys, values, key_words, value_words, block, slot, key_stride, value_stride, seen, seen[None, :],
            scale, softcap, best, total, acc,
            D, DP, V, VP, CAPPED, KW, VW, KIND,
        )  # fmt: skip
    if WHOLE:
        if HAS_SINKS:
            total, acc = with_sink(sinks + kv * GROUP + group, is_head, best, total, acc)
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
