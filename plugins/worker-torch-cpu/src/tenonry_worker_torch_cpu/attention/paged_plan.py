"""Per-step plan of the CPU backend for kernels over blocks: tables and lengths of the rows that decode, and of those
that have several queries. Worker process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch

from tenonry_torch_base.attention.sdpa_plan import SdpaPlan
from tenonry_torch_base.paged_attention import Chunks, PagedKeys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tenonry_torch_base.attention.base import AttentionBatch


class PagedPlan(SdpaPlan):
    """A step: the reference's plan for prefill, and the keys of decoding rows for kernels."""

    sorts: ClassVar[bool] = False  # a kernel handles rows of any length together
    __slots__ = ("_all_rows", "_chunked", "_chunks", "_lengths", "_table")

    def __init__(self, batch: AttentionBatch, block_size: int) -> None:
        super().__init__(batch, block_size)
        self._table: torch.Tensor | None = None
        self._lengths: torch.Tensor | None = None
        self._chunks: Chunks | None = None
        self._chunked: tuple[torch.Tensor, torch.Tensor] | None = None
        self._all_rows: tuple[Chunks, torch.Tensor, torch.Tensor] | None = None

    def keys(self, blocks: torch.Tensor) -> PagedKeys:
        """Keys in the cache `blocks` of a layer, for the rows in decode order."""
        if self._table is None or self._lengths is None:
            self._lengths, self._table = self._looked_up(self.decode_order)
        return PagedKeys(blocks, self._table, self._lengths, self.batch.is_dependent)

    def chunks(self, blocks: torch.Tensor) -> tuple[Chunks, PagedKeys] | None:
        """Return the rows with several queries, and their keys in the cache `blocks` of a layer; None without such
        rows, or if some attend to later tokens.
        """
        if not self.prefill or any(segment.last_seen is not None for segment in self.prefill):
            return None
        if self._chunks is None or self._chunked is None:
            num_tokens = self.batch.num_tokens.astype(np.int64)
            order = np.flatnonzero(num_tokens > 1)
            begins = np.cumsum(num_tokens) - num_tokens
            self._chunks = Chunks(
                torch.from_numpy(begins[order]), torch.from_numpy(num_tokens[order])
            )
            self._chunked = self._looked_up(order)
        lengths, table = self._chunked
        return self._chunks, PagedKeys(blocks, table, lengths)

    def all_rows(self, blocks: torch.Tensor) -> tuple[Chunks, PagedKeys] | None:
        """As `chunks`, for all rows of the step, including decoding ones; also None if only some tokens attend."""
        is_pruned = (
            self.batch.full_plan is not None or self.num_queries < self.batch.num_tokens.sum()
        )
        if is_pruned or self.chunks(blocks) is None:
            return None
        if self._all_rows is None:
            counts = self.batch.num_tokens.astype(np.int64)
            found = Chunks(torch.from_numpy(np.cumsum(counts) - counts), torch.from_numpy(counts))
            self._all_rows = (found, *self._looked_up(np.arange(len(counts))))
        found, lengths, table = self._all_rows
        return found, PagedKeys(blocks, table, lengths)

    @property
    def is_decode_only(self) -> bool:
        """True if each row of the step has one token, which attends."""
        return (
            not self.prefill
            and self.decode_tokens is None
            and self.batch.full_plan is None
            and len(self.decode_order) == self.num_queries
        )

    def _looked_up(self, order: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        """Lengths of the rows `order`, and the blocks that they reach into."""
        batch = self.batch
        lengths = batch.seq_lens[order]
        width = -(-int(lengths.max()) // self.block_size)
        rows = batch.row[order]
        table = batch.block_table[rows, :width]
        found = torch.from_numpy(lengths.astype(np.int64))
        return found, torch.from_numpy(np.ascontiguousarray(table, np.int32))
