"""Per-step plan of the reference backend: slots of K/V, rows that decode together, and the blocks they gather.

Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.attention.segments import Segment, length_groups, prefill_segments

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, LayerSpec

MAX_GATHER_BYTES = 128 << 20  # K and V copied together for one group of decode rows


class DecodeGroup:
    """Rows [begin, end) of the decode order: `index` (see `block_index`) and additive `mask` [R, 1, 1, L]."""

    __slots__ = ("begin", "end", "index", "mask")

    def __init__(self, begin: int, end: int, index: torch.Tensor, mask: torch.Tensor) -> None:
        self.begin = begin
        self.end = end
        self.index = index
        self.mask = mask


class SdpaPlan:
    """One step: its decoding tokens (None: all, in order) and prefill segments.

    Groups and indices are made by the first layer that needs them and shared by equal layers.
    """

    sorts: ClassVar[bool] = True  # decoding rows of like length next to each other
    __slots__ = (
        "_context",
        "_groups",
        "_lines",
        "batch",
        "block_size",
        "decode_order",
        "decode_tokens",
        "num_queries",
        "prefill",
    )

    def __init__(self, batch: AttentionBatch, block_size: int) -> None:
        self.batch = batch
        self.block_size = block_size
        self.num_queries = int(batch.num_tokens.sum())
        self.prefill: list[Segment] = []
        self.decode_tokens: torch.Tensor | None = None
        self.decode_order = np.arange(len(batch.row))
        self._groups: dict[tuple[int, int, int, bool], list[DecodeGroup]] = {}
        self._context: dict[tuple[int, int, int, bool], torch.Tensor] = {}
        self._lines: dict[int, torch.Tensor] = {}
        if self.num_queries != len(batch.row):
            self.prefill = prefill_segments(
                batch.row, batch.num_tokens, batch.start, batch.last_seen
            )
            self.decode_order = np.flatnonzero(batch.num_tokens == 1)
        if self.sorts and len(self.decode_order) > 1:
            self.decode_order = longest_first(self.decode_order, batch.seq_lens)
        in_order = np.arange(len(batch.row))
        if self.prefill or not np.array_equal(self.decode_order, in_order):
            first_token = np.cumsum(batch.num_tokens) - batch.num_tokens
            tokens = first_token[self.decode_order].astype(np.int64)
            self.decode_tokens = batch.put("decode_tokens", tokens)

    def lines(self, count: int) -> torch.Tensor:
        """Lines of the step's T tokens in a cache of `count` lines per block, one slot each: i64[T · count]."""
        if count not in self._lines:
            block, slot = np.divmod(self.batch.slot_mapping, self.block_size)
            lines = block[:, None] * count + np.arange(count)  # [T, count], in units of a block
            lines = lines * self.block_size + slot[:, None]
            self._lines[count] = self.batch.put(f"lines_{count}", lines.reshape(-1))
        return self._lines[count]

    def write_elsewhere(self, batch: AttentionBatch) -> None:
        """The same step again, one token further: only where K/V go is new."""
        self.batch = batch
        self._lines.clear()

    def context_index(
        self, segment: Segment, spec: LayerSpec, begin: int, end: int
    ) -> torch.Tensor:
        """The block index of a segment's blocks [begin, end)."""
        has_one_size = spec.key_size == spec.value_size
        wanted = (segment.token, begin, spec.num_kv_heads, has_one_size)
        if wanted not in self._context:
            blocks = self.batch.block_table[segment.row, None, begin:end]
            label = "context_" + "_".join(map(str, wanted))
            self._context[wanted] = self.batch.put(label, block_index(blocks, spec))
        return self._context[wanted]

    def first_context_index(self, segment: Segment, spec: LayerSpec, end: int) -> torch.Tensor:
        """The block index of the first `end` blocks of every sequence of a segment."""
        batch = self.batch
        first_token = np.cumsum(batch.num_tokens) - batch.num_tokens
        place = int(np.flatnonzero(first_token == segment.token)[0])
        rows = batch.row[place : place + segment.count]
        blocks = batch.block_table[rows, :end]
        label = f"first_context_{segment.token}_{spec.num_kv_heads}_{spec.value_size}"
        return batch.put(label, block_index(blocks, spec))

    def decode_groups(self, spec: LayerSpec, dtype: torch.dtype) -> list[DecodeGroup]:
        """Decoding rows in groups of like length whose gathered K/V stay within bounds."""
        has_one_size = spec.key_size == spec.value_size
        wanted = (spec.window, spec.chunk, spec.num_kv_heads, has_one_size)
        if wanted not in self._groups:
            lengths = self.batch.seq_lens[self.decode_order].astype(np.int64)
            first = (
                spec.first_seen(lengths) // self.block_size
            )  # the first block that each row still sees
            seen = lengths - first * self.block_size
            budget = MAX_GATHER_BYTES // spec.bytes_per_token(dtype)
            self._groups[wanted] = [
                self._make_group(spec, dtype, first[begin:end, None], begin, end)
                for begin, end in length_groups(seen, budget)
            ]
        return self._groups[wanted]

    def _make_group(
        self, spec: LayerSpec, dtype: torch.dtype, first: NDArray[np.int64], begin: int, end: int
    ) -> DecodeGroup:
        """`first` i64[R, 1]: the first block that each row still sees."""
        batch = self.batch
        size = self.block_size
        places = self.decode_order[begin:end]
        lengths = batch.seq_lens[places, None].astype(np.int64)  # [R, 1]

        # The blocks [R, n] of each row, from its first one on.
        num_blocks = -(-lengths // size) - first
        wanted = first + np.arange(int(num_blocks.max()))
        table = batch.block_table[batch.row[places]]
        # Beyond its last block a row reads its first visible one again: masked, and never another request's NaN.
        inside = np.where(wanted * size < lengths, wanted, first)
        blocks = np.take_along_axis(table, inside, 1)

        # The mask [R, L] of the positions in them.
        positions = first * size + np.arange(wanted.shape[1] * size)
        hidden = positions >= lengths
        if spec.window or spec.chunk:
            hidden |= positions < spec.first_seen(lengths)
        mask = np.where(hidden, np.float32("-inf"), np.float32(0))

        label = f"decode_{spec.window}_{spec.chunk}_{spec.num_kv_heads}_{spec.value_size}_{begin}"
        index = batch.put(f"{label}_index", block_index(blocks, spec))
        additive = batch.put(f"{label}_mask", mask[:, None, None, :])
        return DecodeGroup(begin, end, index, additive.to(dtype))


def entered_blocks(batch: AttentionBatch, block_size: int) -> NDArray[np.int64]:
    """The last blocks of rows that write their first slots in this step, and not yet their last ones: i64[N]."""
    begun = batch.seq_lens % block_size
    is_entered = (begun > 0) & (begun <= batch.num_tokens)
    entered = is_entered.nonzero()[0]
    rows = batch.row[entered]
    last = batch.seq_lens[entered] // block_size
    return batch.block_table[rows, last].astype(np.int64)


def longest_first(order: NDArray[np.int64], seq_lens: NDArray[np.int32]) -> NDArray[np.int64]:
    """The rows `order`, sorted where lengths differ enough to matter; rows that decode in step stay in order."""
    if not len(order):
        return order
    lengths = seq_lens[order]
    if 2 * int(lengths.min()) >= int(lengths.max()):
        return order
    return order[np.argsort(-lengths, kind="stable")]


def block_index(blocks: NDArray[np.int32], spec: LayerSpec) -> NDArray[np.int64]:
    """Index of the blocks [R, n] in a cache viewed as lines of one block and one head.

    For each of keys and values (or once, if they have a tensor each): row, head and block, flattened.
    """
    tensors = 2 if spec.key_size == spec.value_size else 1
    lines = np.arange(tensors * spec.num_kv_heads)
    lines = lines.reshape(tensors, 1, spec.num_kv_heads, 1)
    first = blocks[:, None, :].astype(np.int64) * lines.size  # [R, 1, n]
    index: NDArray[np.int64] = first + lines
    return index.reshape(-1)
