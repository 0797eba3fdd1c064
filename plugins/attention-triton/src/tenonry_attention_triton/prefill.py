"""Triton kernels of prompts: K/V of a step into their slots, and rows with several queries. Worker process."""

from __future__ import annotations

import triton
import triton.language as tl

from tenonry_attention_triton.kept import store_vector
from tenonry_attention_triton.scores import first_seen, with_tile


@triton.jit
def write_slots(
    key, value, slots, keys, values, key_words, value_words, key_stride, value_stride, key_token, value_token,
    D: tl.constexpr, DP: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, BS: tl.constexpr,
    KW: tl.constexpr, VW: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A program per token and KV head. `key_token`, `value_token`: elements from one token of the input to the next."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    slot = tl.load(slots + token)
    place = head * BS + slot % BS
    d = tl.arange(0, DP)
    v = tl.arange(0, VP)
    new_key = tl.load(key + token * key_token + head * D + d, mask=d < D)
    new_value = tl.load(value + token * value_token + head * V + v, mask=v < V)
    key_line = slot // BS * key_stride + place * KW
    value_line = slot // BS * value_stride + place * VW
    store_vector(new_key, keys, key_words, key_line, d, d < D, KW, KIND)
    store_vector(new_value, values, value_words, value_line, v, v < V, VW, KIND)


@triton.jit(do_not_specialize=["width", "window", "chunk"])
def chunk_attention(
    q, keys, values, key_words, value_words, table, lengths, tokens, counts, tile_row, tile_at, sinks, out,
    scale, softcap, width, window, chunk, key_stride, value_stride,
    HEADS: tl.constexpr, GROUP: tl.constexpr, LINES: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    V: tl.constexpr, VP: tl.constexpr, BS: tl.constexpr, TILE: tl.constexpr, CAPPED: tl.constexpr,
    HAS_SINKS: tl.constexpr, KW: tl.constexpr, VW: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """A program per KV head and tile of LINES // GROUP neighbouring queries of a row, with all heads of the group.

    Query i of a row's `counts` is at position `lengths` − `counts` + i, and at `tokens` + i of the step.
    """
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    row = tl.load(tile_row + tile)
    at = tl.load(tile_at + tile)  # the first query
    count = tl.load(counts + row)
    length = tl.load(lengths + row)
    line = tl.arange(0, LINES)
    d = tl.arange(0, DP)
    v = tl.arange(0, VP)
    query = at + line // GROUP
    is_query = (query < count) & (line < LINES // GROUP * GROUP)
    position = length - count + query
    head = kv * GROUP + line % GROUP
    heads = (tl.load(tokens + row).to(tl.int64) + query) * HEADS + head
    asked = tl.load(
        q + heads[:, None] * D + d[None, :], mask=is_query[:, None] & (d < D)[None, :], other=0.0
    )
    acc = tl.zeros([LINES, VP], tl.float32)
    if HAS_SINKS:
        best = tl.load(sinks + head).to(tl.float32)
        total = tl.full([LINES], 1.0, tl.float32)
    else:
        best = tl.full([LINES], float("-inf"), tl.float32)
        total = tl.zeros([LINES], tl.float32)
    first = first_seen(position, window, chunk)
    begin = first_seen(length - count + at, window, chunk) // TILE * TILE
    end = tl.minimum(length - count + at + LINES // GROUP, length)
    for key_at in range(begin, end, TILE):
        place = key_at + tl.arange(0, TILE)
        # Blocks before what the row sees may be another's by now.
        inside = (place < end) & (place >= first_seen(length - count + at, window, chunk))
        block = tl.load(table + row * width + place // BS, mask=inside, other=0).to(tl.int64)
        slot = kv * BS + place % BS
        seen = (
            (place[None, :] <= position[:, None])
            & (place[None, :] >= first[:, None])
            & inside[None, :]
        )
        best, total, acc = with_tile(
            asked, keys, values, key_words, value_words, block, slot, key_stride, value_stride, inside, seen,
            scale, softcap, best, total, acc,
            D, DP, V, VP, CAPPED, KW, VW, KIND,
        )  # fmt: skip
    # Lines of no query have no keys.
    made = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        out + heads[:, None] * V + v[None, :],
        made.to(out.dtype.element_ty),
        mask=is_query[:, None] & (v < V)[None, :],
    )
