"""A step as the kernels read it: where each row's tokens, keys and slots are, on the device. Worker process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch, DecodeRows
    from tenonry_torch_base.attention.sdpa_plan import SdpaPlan


class Rows:
    """Some rows of a step: `table` i32[R, blocks], `lengths` i32[R] with their queries included, `tokens` i32[R] (the
    place of the first query in the step) and `counts` i32[R] of queries.
    """

    __slots__ = ("count", "counts", "lengths", "table", "tokens")

    table: torch.Tensor
    lengths: torch.Tensor
    tokens: torch.Tensor
    counts: torch.Tensor

    def __init__(self, count: int) -> None:
        self.count = count

    @classmethod
    def of_step(
        cls, kind: str, batch: AttentionBatch, places: NDArray[np.intp], block_size: int
    ) -> Rows:
        """Those at `places` of a step."""
        rows = cls(len(places))
        if rows.count:
            rows._put(kind, batch, places, block_size)
        return rows

    @classmethod
    def repeated(cls, given: DecodeRows) -> Rows:
        """All rows of steps in which each decodes, over tensors that later steps rewrite."""
        rows = cls(len(given.lengths))
        rows.table = given.table
        rows.lengths = given.lengths
        rows.tokens = torch.arange(rows.count, dtype=torch.int32, device=given.table.device)
        return rows

    def _put(
        self, kind: str, batch: AttentionBatch, places: NDArray[np.intp], block_size: int
    ) -> None:
        put = batch.put
        lengths = batch.seq_lens[places].astype(np.int32)
        width = -(-int(lengths.max()) // block_size)
        table = batch.block_table[batch.row[places], :width]
        self.table = put(f"{kind}_table", np.ascontiguousarray(table, np.int32))
        self.lengths = put(f"{kind}_lengths", lengths)
        first = np.cumsum(batch.num_tokens) - batch.num_tokens
        self.tokens = put(f"{kind}_tokens", first[places].astype(np.int32))
        if kind == "prefill":
            self.counts = put("prefill_counts", batch.num_tokens[places].astype(np.int32))


class TritonPlan:
    """One step: rows with one query decode, the others prefill. `programs`: how many keep the device busy.

    `reference`: the plan of the reference backend, for layers that its operations compute.
    """

    def __init__(self, batch: AttentionBatch, block_size: int, programs: int) -> None:
        self.batch = batch
        self.block_size = block_size
        self.programs = programs
        self.reference: SdpaPlan | None = None
        self.num_queries = int(batch.num_tokens.sum())
        self.slots = batch.put("slots", batch.slot_mapping)
        self.decode = Rows.of_step(
            "decode", batch, np.flatnonzero(batch.num_tokens == 1), block_size
        )
        self._prefilling = np.flatnonzero(batch.num_tokens > 1)
        self.prefill = Rows.of_step("prefill", batch, self._prefilling, block_size)
        self._tiles: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def tiles(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tiles of at most `size` queries: i32[N] their rows among those that prefill, and their first queries."""
        if size not in self._tiles:
            counts = self.batch.num_tokens[self._prefilling].astype(np.int64)
            per_row = -(-counts // size)
            rows = np.repeat(np.arange(len(counts)), per_row)
            number = np.arange(len(rows)) - np.repeat(per_row.cumsum() - per_row, per_row)
            put = self.batch.put
            self._tiles[size] = (
                put(f"tile_row_{size}", rows.astype(np.int32)),
                put(f"tile_at_{size}", (number * size).astype(np.int32)),
            )
        return self._tiles[size]


class RepeatedPlan(TritonPlan):
    """Decode steps with equal numbers of rows and any tensor contents: the launches are the same."""

    def __init__(self, rows: DecodeRows, block_size: int, programs: int) -> None:
        self.block_size = block_size
        self.programs = programs
        self.slots = rows.slots
        self.decode = Rows.repeated(rows)
        self.num_queries = self.decode.count
        self.prefill = Rows(0)
