"""Tracks the state slots of recurrent KV groups from outside, with plain Python containers. Test process."""

from __future__ import annotations

from tenonry.kv_cache import KVCacheConfig
from tenonry.step import SchedulerOutput
from tenonry_testkit.rules import STATE_SLOTS, expect

Slot = tuple[int, int]  # KV group, id


class SlotChecker:
    """Slots with a snapshot. The fake worker checks its content."""

    def __init__(self, kv_cache: KVCacheConfig) -> None:
        self.groups = {
            number for number, group in enumerate(kv_cache.groups) if group.kind == "recurrent"
        }
        self._num_slots = kv_cache.num_state_slots
        self._filled: set[Slot] = set()

    def forget(self) -> None:
        """Drop the record of all snapshots, after a reset of the caches."""
        self._filled.clear()

    def check(self, output: SchedulerOutput) -> None:
        """Raise RuleBroken unless rows start from slots filled by an earlier step, and each slot is filled once per
        step.
        """
        if not self.groups:
            return
        for new in output.new:
            for group in self.groups:
                slots = new.block_ids[group].tolist()
                expect(
                    len(slots) == (new.num_computed > 0),
                    STATE_SLOTS,
                    "row {} starts at token {} from slots {}",
                    new.row,
                    new.num_computed,
                    slots,
                )
                for slot in slots:
                    is_filled = (group, slot) in self._filled
                    expect(is_filled, STATE_SLOTS, "row {} starts from {}", new.row, slot)
        self._filled |= self._saved(output)

    def _saved(self, output: SchedulerOutput) -> set[Slot]:
        saved: set[Slot] = set()
        columns = (
            output.new_block_row.tolist(),
            output.new_block_group.tolist(),
            output.new_block_id.tolist(),
        )
        for row, group, slot in zip(*columns, strict=True):
            if group not in self.groups:
                continue
            expect(row in output.row, STATE_SLOTS, "row {} is saved, but does not run", row)
            expect(0 <= slot < self._num_slots, STATE_SLOTS, "row {} is saved in {}", row, slot)
            expect((group, slot) not in saved, STATE_SLOTS, "slot {} is filled twice", slot)
            saved.add((group, slot))
        return saved
