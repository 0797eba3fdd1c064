"""The states of the fake worker's recurrent groups: one number per sequence, which every token changes. Worker process.

Rows start from a slot or from nothing, and the number must be that of the row's own tokens at every step.
"""

from __future__ import annotations

import numpy as np

from tenonry.kv_cache import KVCacheConfig
from tenonry.step import I32, NewRow, SchedulerOutput
from tenonry_scheduling.columns import BatchState, StepInputs
from tenonry_testkit.fakes.kv_store import NOBODY, POISON, FakeKVError, Reading
from tenonry_testkit.fakes.tokens import U64, group_kv


class FakeStateStore:
    """One 64-bit number per row and group, and per state slot and group, each with the handle that made it.

    value, owner u64[groups, rows]; slot_value, slot_owner u64[groups, state slots]. A row in an unfilled slot reads a
    value that no tokens produce.
    """

    def __init__(self, kv_cache: KVCacheConfig, num_rows: int) -> None:
        groups = kv_cache.groups
        self.groups = []
        for index, group in enumerate(groups):
            if group.kind == "recurrent":
                self.groups.append(index)
        rows = (len(groups), num_rows)
        slots = (len(groups), kv_cache.num_state_slots)
        self.value = np.zeros(rows, np.uint64)
        self.owner = np.full(rows, NOBODY, np.uint64)
        self.slot_value = np.zeros(slots, np.uint64)
        self.slot_owner = np.full(slots, NOBODY, np.uint64)

    def enter(self, new: NewRow) -> None:
        """Add a row, from a slot or without a state."""
        for group in self.groups:
            self.value[group, new.row] = 0
            self.owner[group, new.row] = NOBODY
            for slot in new.block_ids[group].tolist():
                self.value[group, new.row] = self.slot_value[group, slot]
                self.owner[group, new.row] = self.slot_owner[group, slot]

    def read(
        self, state: BatchState, inputs: StepInputs, kv: U64, bad: U64, reading: Reading
    ) -> None:
        """Check the state of each row before the step; poisoned states are recorded in `reading`.

        `kv` and `bad` as in `FakeKVStore.step`. Raises FakeKVError for the state of other tokens.
        """
        rows = inputs.row
        has_state = (inputs.start > 0) & (bad == 0)
        before = np.maximum(inputs.start - 1, 0)
        for group in self.groups:
            found = self.value[group, rows]
            owner = self.owner[group, rows]
            expected = _at(kv, group, before)
            is_poison = has_state & (found == POISON)
            culprits = np.where(is_poison, owner, NOBODY)
            reading.poisoned_by = np.minimum(reading.poisoned_by, culprits)
            differs = has_state & (found != expected)
            wrong = differs & ~is_poison
            if wrong.any():
                i = int(wrong.argmax())
                row = int(rows[i])
                handle = state.handle[row]
                raise FakeKVError(
                    f"row {row} (handle {handle}) computes from token {inputs.start[i]} on with a state (group "
                    f"{group}) that its tokens did not make, but those of handle {owner[i]}"
                )

    def advance(self, state: BatchState, inputs: StepInputs, kv: U64, bad: U64) -> U64:
        """Advance the states to the end of the step; returns the values read by samples, u64[R]."""
        rows = inputs.row
        is_bad = bad > 0
        context = np.zeros(len(rows), np.uint64)
        for group in self.groups:
            made = _at(kv, group, inputs.seq_lens - 1)
            self.value[group, rows] = np.where(is_bad, bad, made)
            self.owner[group, rows] = state.handle[rows]
            made[is_bad] = 0
            context += made
        return context

    def save(self, output: SchedulerOutput, state: BatchState) -> None:
        """Copy the states requested by the step into slots."""
        for group in self.groups:
            is_copy = output.new_block_group == group
            rows = output.new_block_row[is_copy]
            slots = output.new_block_id[is_copy]
            self.slot_value[group, slots] = self.value[group, rows]
            self.slot_owner[group, slots] = state.handle[rows]


def _at(kv: U64, group: int, position: I32) -> U64:
    """State of the tokens up to `position[i]` of row i in this group, u64[R]."""
    each_row = np.arange(len(position))
    numbers = group_kv(kv, group)
    made: U64 = numbers[each_row, position]
    return made
