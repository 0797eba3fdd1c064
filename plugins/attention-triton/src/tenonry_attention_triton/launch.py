"""Launches of the kernels: shapes of tiles, and the arguments in order. Worker process; imports Triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton

from tenonry_attention_triton.decode import MAX_SPLITS, decode_join, decode_split
from tenonry_attention_triton.kept import FLOATS, KINDS
from tenonry_attention_triton.prefill import chunk_attention, write_slots

if TYPE_CHECKING:
    from tenonry_attention_triton.plan import TritonPlan
    from tenonry_torch_base.attention.base import LayerCache, LayerSpec
    from tenonry_torch_base.attention.kv_storage import KVStorage

TILE_BYTES = 32 << 10  # keys and values of a tile
SHARED_BYTES = 96 << 10  # of every card from sm_80 on
DECODE_LINES = 16  # of any tile at least: the smallest side of a matrix product
AFTER_SM_80, SM_120 = 9, 12  # major compute capabilities
NARROW = 128  # sizes up to it leave registers for more queries


class Shape:
    """Sizes of a layer as the kernels take them; powers of two where they need them."""

    def __init__(self, spec: LayerSpec, itemsize: int, card: int, storage: KVStorage) -> None:
        """`card`: its major compute capability."""
        self.spec = spec
        self.kept = {
            "KW": storage.width(spec.key_size), "VW": storage.width(spec.value_size), "KIND": KINDS[storage.name],
        }  # fmt: skip
        key_size, value_size = padded(spec.key_size), padded(spec.value_size)
        row_bytes = (key_size + value_size) * itemsize
        self.tile = min(64, max(16, 1 << (TILE_BYTES // row_bytes).bit_length() - 1))
        is_half = itemsize <= 2
        most_stages = 3 if is_half else 2  # a third one of float32 spills on sm_80
        self.num_stages = min(most_stages, max(1, SHARED_BYTES // (self.tile * row_bytes)))
        group = spec.num_heads // spec.num_kv_heads
        self.decode_lines = max(DECODE_LINES, triton.next_power_of_2(group))
        is_narrow = max(key_size, value_size) <= NARROW
        lines = chunk_lines(card, is_half=is_half, is_narrow=is_narrow)
        self.chunk_lines = max(lines, triton.next_power_of_2(group))
        is_kept = self.kept["KIND"] != FLOATS
        if is_kept:  # words are taken apart in registers
            self.tile = min(self.tile, 32)
            lines = 64 if is_narrow and is_half else lines // 2
            self.chunk_lines = max(DECODE_LINES, lines, triton.next_power_of_2(group))
        self.sizes = {
            "D": spec.key_size, "DP": key_size, "V": spec.value_size, "VP": value_size,
        }  # fmt: skip
        self.common = {
            "HEADS": spec.num_heads, "GROUP": group,
            "CAPPED": spec.softcap > 0, **self.sizes,
        }  # fmt: skip

        self.write_options = {"num_warps": 1}
        self.join_options = {"num_warps": 4}
        self.decode_options = {"num_warps": 8 if is_kept else 4, "num_stages": self.num_stages}
        # With the division at the end, a second stage of float32 spills.
        self.whole_options = {
            **self.decode_options,
            "num_stages": self.num_stages if is_half else 1,
        }
        # Products of float32 hold their operands in registers: more warps and narrower tiles, or they spill. With wide
        # keys a tile of 16 does so from sm_90 on, one of 32 on sm_80; with keys in 8 bits one of 32 on no card.
        of_float32 = 16 if is_narrow or (card < AFTER_SM_80 and not is_kept) else 32
        self.chunk_tile = self.tile if is_half else of_float32
        self.chunk_options = {
            "num_warps": 4 if is_kept and is_narrow and not is_half else 8,
            "num_stages": min(2, self.num_stages) if is_half else 1,
        }

    def words(self, cache: LayerCache) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V in 8 bits as words of two octets; others as they are."""
        if self.kept["KIND"] == FLOATS:
            return cache.key, cache.value
        return cache.key.view(torch.int16), cache.value.view(torch.int16)

    @property
    def queries_per_tile(self) -> int:
        """Neighbouring queries of a row that a program of prefill has."""
        return self.chunk_lines // self.spec.group_size


def chunk_lines(card: int, *, is_half: bool, is_narrow: bool) -> int:
    """Lines of a prefill tile, the most that spill on no card of a major compute capability."""
    if not is_half:
        return 64 if is_narrow else 16
    return 128 if is_narrow and card < SM_120 else 64


def padded(size: int) -> int:
    """The next power of two of a head's size, 16 at least."""
    return max(16, triton.next_power_of_2(size))


def num_splits(rows: int, kv_heads: int, programs: int) -> int:
    """Splits of each row's keys: by the number of rows rounded up to a power of two, whatever their lengths are."""
    bucket = triton.next_power_of_2(max(1, rows))
    wanted = max(1, programs // (bucket * kv_heads))
    return min(MAX_SPLITS, 1 << wanted.bit_length() - 1)


def write(
    shape: Shape, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, plan: TritonPlan
) -> None:
    """`key` and `value` [T, heads, size], contiguous for each token, into their slots."""
    spec = shape.spec
    write_slots[len(key), spec.num_kv_heads](
        key, value, plan.slots, cache.key, cache.value, *shape.words(cache), cache.key.stride(0),
        cache.value.stride(0), key.stride(0), value.stride(0), BS=plan.block_size, **shape.write_options,
        **shape.sizes, **shape.kept,
    )  # fmt: skip


def decode(
    shape: Shape,
    cache: LayerCache,
    query: torch.Tensor,
    sinks: torch.Tensor | None,
    plan: TritonPlan,
    out: torch.Tensor,
) -> None:
    """The decoding rows of a step, into their places in `out` [Q, heads, size]."""
    spec = shape.spec
    rows = plan.decode
    splits = num_splits(rows.count, spec.num_kv_heads, plan.programs)
    is_whole = splits == 1
    part = stats = out
    if not is_whole:
        lines = rows.count * spec.num_heads * splits
        part = torch.empty(lines, spec.value_size, dtype=torch.float32, device=query.device)
        stats = torch.empty(lines, 2, dtype=torch.float32, device=query.device)
    given = out if sinks is None else sinks
    decode_split[rows.count, spec.num_kv_heads, splits](
        query, cache.key, cache.value, *shape.words(cache), rows.table, rows.lengths, rows.tokens, given, part, stats,
        out, spec.scaling,
        spec.softcap, rows.table.shape[1], spec.window, spec.chunk, cache.key.stride(0), cache.value.stride(0),
        LINES=shape.decode_lines, TILE=shape.tile, BS=plan.block_size, WHOLE=is_whole,
        HAS_SINKS=sinks is not None, **(shape.whole_options if is_whole else shape.decode_options), **shape.common,
        **shape.kept,
    )  # fmt: skip
    if is_whole:
        return
    decode_join[rows.count, spec.num_heads](
        part, stats, rows.tokens, given, out, splits, HEADS=spec.num_heads, V=spec.value_size,
        VP=shape.sizes["VP"], MOST=MAX_SPLITS, HAS_SINKS=sinks is not None, **shape.join_options,
    )  # fmt: skip


def prefill(
    shape: Shape,
    cache: LayerCache,
    query: torch.Tensor,
    sinks: torch.Tensor | None,
    plan: TritonPlan,
    out: torch.Tensor,
) -> None:
    """Rows with several queries, into their places in `out` [Q, heads, size]."""
    spec = shape.spec
    rows = plan.prefill
    tile_row, tile_at = plan.tiles(shape.queries_per_tile)
    chunk_attention[len(tile_row), spec.num_kv_heads](
        query, cache.key, cache.value, *shape.words(cache), rows.table, rows.lengths, rows.tokens, rows.counts,
        tile_row, tile_at,
        query if sinks is None else sinks, out, spec.scaling, spec.softcap, rows.table.shape[1], spec.window,
        spec.chunk, cache.key.stride(0), cache.value.stride(0), LINES=shape.chunk_lines, TILE=shape.chunk_tile,
        BS=plan.block_size, HAS_SINKS=sinks is not None, **shape.chunk_options, **shape.common, **shape.kept,
    )  # fmt: skip


def launches(plan: TritonPlan) -> list[Any]:
    """The attention kernels that a step needs."""
    return [
        launch for launch, rows in ((decode, plan.decode), (prefill, plan.prefill)) if rows.count
    ]
