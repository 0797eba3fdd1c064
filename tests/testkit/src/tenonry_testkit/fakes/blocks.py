"""KV blocks, as plainly as they can be handed out: no prefix cache, no columns, no connector. Engine process.

The reference against which a cleverer block manager can be checked: whatever that one does, the tokens must be those
that a scheduler produces with this one.
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
    """One list of free block ids per KV group, and one list of block ids per row and group.

    A recurrent group has no blocks; its rows start without a state, and no snapshot is taken.
    """

    def __init__(self, context: SchedulerContext) -> None:
        self._block_size = context.kv_cache.block_size
        self._total = context.kv_cache.num_blocks
        groups = context.kv_cache.groups
        self._with_blocks = {
            number for number, group in enumerate(groups) if group.kind != "recurrent"
        }
        self._free = [list(range(self._total)) for _ in groups]
        self._tables: dict[int, list[list[int]]] = {}

    def attach(self, rows: Rows) -> None:
        """The columns hold nothing that is needed here."""

    def match(self, request: Request, row: int) -> Match:
        return Match(0)

    def grow(self, rows: Index, num_tokens: I32) -> NewBlocks | None:
        wanted: list[tuple[int, int]] = []  # (row, group), once per missing block
        each_row = zip(rows.tolist(), num_tokens.tolist(), strict=True)
        for row, tokens in each_row:
            num_blocks = -(-tokens // self._block_size)
            for group in self._with_blocks:
                missing = num_blocks - len(self._table(row)[group])
                wanted += [(row, group)] * missing
        for group, free in enumerate(self._free):
            needed = [row for row, of_group in wanted if of_group == group]
            if len(needed) > len(free):
                return None
        added = []
        for row, group in wanted:
            block_id = self._take(row, group)
            added.append((row, group, block_id))
        columns = np.array(added, np.int32).reshape(-1, 3)
        return NewBlocks(
            columns[:, 0],
            columns[:, 1],
            columns[:, 2],
        )

    def register(self, rows: Index, num_known: I32) -> None:
        """Nothing is cached."""

    def free(
        self,
        request: Request,
        row: int,
        *,
        num_known: int,
        drop: bool = False,
    ) -> dict[str, Any] | None:
        tables = self._tables.pop(row, [])
        for group, ids in enumerate(tables):
            free = self._free[group] + ids
            self._free[group] = sorted(free)
        return None

    def forget(self, request: Request) -> None:
        """Nothing is remembered."""

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
        return min(len(free) for free in self._free)

    @property
    def num_total(self) -> int:
        return self._total

    def take_counts(self) -> tuple[int, int]:
        return 0, 0

    def _table(self, row: int) -> list[list[int]]:
        if row not in self._tables:
            self._tables[row] = [[] for _ in self._free]
        return self._tables[row]

    def _take(self, row: int, group: int) -> int:
        block_id = self._free[group].pop(0)
        self._table(row)[group].append(block_id)
        return block_id
