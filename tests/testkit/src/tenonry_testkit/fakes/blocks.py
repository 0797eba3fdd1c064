"""The simplest block manager: no prefix cache, no columns, no connector. Engine process.

The reference for block managers: with any of them, a scheduler must produce the same tokens as with this one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tenonry.interfaces.scheduler import SchedulerContext
from tenonry.request import Request
from tenonry.step import I32
from tenonry_scheduling import BlockManager, Match, Rows
from tenonry_scheduling.blocks import NewBlocks, Transferred
from tenonry_scheduling.rows import Index


class SimpleBlocks(BlockManager):
    """One list of free block ids, and one list of block ids per row and group.

    Places outside a row's sliding window keep their ids; the row holds those from `past` on. A recurrent group has no
    blocks; its rows start without a state, and no snapshot is taken.
    """

    def __init__(self, context: SchedulerContext) -> None:
        self._block_size = context.kv_cache.block_size
        self._total = context.kv_cache.num_blocks
        self._groups = context.kv_cache.groups
        self._free = list(range(self._total))
        self._tables: dict[int, list[list[int]]] = {}
        self._past: dict[tuple[int, int], int] = {}  # by row and group

    def attach(self, rows: Rows) -> None:
        self._rows = rows

    def match(self, request: Request, row: int) -> Match:
        return Match(0)

    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        wanted: list[tuple[int, int]] = []  # (row, group), once per missing block
        each_row = zip(rows.tolist(), num_tokens.tolist(), strict=True)
        for row, tokens in each_row:
            self._give_back(row)
            num_blocks = -(-tokens // self._block_size)
            for number, group in enumerate(self._groups):
                if group.kind != "recurrent":
                    missing = num_blocks - len(self._table(row)[number])
                    wanted += [(row, number)] * missing
        if len(wanted) > len(self._free):
            return None
        added = []
        for row, group in wanted:
            block_id = self._take(row, group)
            added.append((row, group, block_id))
        columns = np.array(added, np.int32).reshape(-1, 3)
        return NewBlocks(columns[:, 0], columns[:, 1], columns[:, 2])

    def reserve(self, row: int, num_tokens: int, end: int) -> bool:
        """Reserve blocks up to `end`; if all groups are full, for all tokens together."""
        is_sliding = any(group.kind == "sliding" for group in self._groups)
        return super().reserve(row, end if is_sliding else num_tokens, end)

    def _give_back(self, row: int) -> None:
        start = int(self._rows.num_computed[row])
        for number, group in enumerate(self._groups):
            if group.kind == "sliding":
                first = max(0, start - group.window + 1) // self._block_size
                past = self._past.get((row, number), 0)
                if first > past:
                    self._past[row, number] = first
                    self._release(self._table(row)[number][past:first])

    def register(self, rows: Index, num_known: I32) -> None:
        """Do nothing: there is no cache."""

    def free(
        self, request: Request, row: int, *, num_known: int, drop: bool = False
    ) -> dict[str, Any] | None:
        tables = self._tables.pop(row, [])
        for group, ids in enumerate(tables):
            held = ids[self._past.pop((row, group), 0) :]
            self._release(held)
        return None

    def forget(self, request: Request) -> None:
        """Do nothing: there is no state per request."""

    def table(self, row: int) -> tuple[I32, ...]:
        groups = self._table(row)
        return tuple(np.array(ids, np.int32) for ids in groups)

    def transfers(self, done: Iterable[int], failed: Iterable[int]) -> Transferred:
        return Transferred([], [])

    def connector_metadata(self) -> Any:
        return None

    def reset(self) -> bool:
        return self.num_free == self.num_total

    @property
    def waits(self) -> bool:
        return False

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_total(self) -> int:
        return self._total

    def take_counts(self) -> tuple[int, int]:
        return 0, 0

    def _table(self, row: int) -> list[list[int]]:
        if row not in self._tables:
            self._tables[row] = [[] for _ in self._groups]
        return self._tables[row]

    def _take(self, row: int, group: int) -> int:
        block_id = self._free.pop(0)
        self._table(row)[group].append(block_id)
        return block_id

    def _release(self, blocks: list[int]) -> None:
        self._free = sorted(self._free + blocks)
