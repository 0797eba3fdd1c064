"""The KV cache of the fake worker: records the content and the writer of each slot. Worker process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tenonry.kv_cache import KVCacheConfig
from tenonry_scheduling.columns import BatchState, StepInputs
from tenonry_testkit.fakes.tokens import U64, group_kv

NOBODY = np.iinfo(np.uint64).max
POISON = np.uint64(0xBAD)  # value written by a row with invalid numbers
LOST = np.uint64(0x105)  # value written by a row that read contents which were never loaded
TRANSFERRED = NOBODY - np.uint64(1)  # the slot was filled by a KV connector


class FakeKVError(AssertionError):
    """A row would have read a slot without its own prefix, or two rows wrote one slot."""


class Reading:
    """Values read by the rows of one step.

    `context` u64[R]: sums modulo 2⁶⁴; `poisoned_by` u64[R]: the poisoning request (NOBODY without one); `lost` bool[R]:
    contents that a KV connector failed to load, or values computed from them.
    """

    def __init__(self, num_rows: int) -> None:
        self.context = np.zeros(num_rows, np.uint64)
        self.poisoned_by = np.full(num_rows, NOBODY, np.uint64)
        self.lost = np.zeros(num_rows, np.bool_)

    def add(self, values: U64, poisoners: U64, lost: NDArray[np.bool_]) -> None:
        """Add the values of one KV group; all [R, longest]."""
        self.context += values.sum(axis=1, dtype=np.uint64)
        first = poisoners.min(axis=1)
        self.poisoned_by = np.minimum(self.poisoned_by, first)
        self.lost |= lost.any(axis=1)


class FakeKVStore:
    """One 64-bit number per slot, which belongs to one group at a time; a `BlockStore` for KV connectors.

    content u64[slots]; owner u64[slots] the handle that wrote it; position i32[slots]. Each group has its own numbers
    for the same tokens, so that a block in the wrong group shows. Recurrent groups are kept in a `FakeStateStore`.
    """

    def __init__(self, kv_cache: KVCacheConfig) -> None:
        self.block_size = kv_cache.block_size
        self.windows = {
            number: group.window if group.kind == "sliding" else 0
            for number, group in enumerate(kv_cache.groups)
            if group.kind != "recurrent"
        }
        num_slots = kv_cache.num_slots
        self.content = np.zeros(num_slots, np.uint64)
        self.owner = np.full(num_slots, NOBODY, np.uint64)
        self.position = np.full(num_slots, -1, np.int32)
        self.tensors: Mapping[str, Any] = {"blocks": self.content.reshape(-1, self.block_size)}
        self.layout = f"fake u64 {self.block_size}"

    # ------------------------------------------------------------------ for KV connectors
    def read(self, block_ids: Sequence[int]) -> list[bytes]:
        return [self.content[slots].tobytes() for slots in self._slots_of_blocks(block_ids)]

    def write(self, block_ids: Sequence[int], data: Sequence[bytes]) -> None:
        for slots, part in zip(self._slots_of_blocks(block_ids), data, strict=True):
            self.content[slots] = np.frombuffer(part, np.uint64)
            self.owner[slots] = TRANSFERRED

    def _slots_of_blocks(self, block_ids: Sequence[int]) -> list[NDArray[np.int64]]:
        size = self.block_size
        return [np.arange(block * size, (block + 1) * size) for block in block_ids]

    # ------------------------------------------------------------------ for the worker
    def slots(self, state: BatchState, inputs: StepInputs, group: int) -> NDArray[np.int64]:
        """Slot of each position of each scheduled row, [R, longest]; arbitrary values beyond a row's own length."""
        longest = int(inputs.seq_lens.max())
        position = np.arange(longest)
        size = self.block_size
        tables = state.block_table[group][inputs.row]
        blocks = tables[:, position // size].astype(np.int64)
        return blocks * size + position % size

    def step(self, state: BatchState, inputs: StepInputs, kv: U64, bad: U64) -> Reading:
        """Write the step's values, then check and sum the values that each row reads.

        `kv` u64[R, longest] are the expected values; a row whose `bad` u64[R] is POISON or LOST writes that and reads
        nothing. Raises FakeKVError that names the row, the position, the slot and the actual content.
        """
        position = np.arange(kv.shape[1])
        inside = position < inputs.seq_lens[:, None]
        written = inside & (position >= inputs.start[:, None])
        slots_of = {group: self.slots(state, inputs, group) for group in self.windows}
        instead = bad[:, None]
        targets = []
        for group, slots in slots_of.items():
            values = np.where(instead > 0, instead, group_kv(kv, group))
            targets.append(self._write(state, inputs, slots, values, written))
        self._check_writers(inputs, targets, written)
        reading = Reading(len(inputs.row))
        for group, slots in slots_of.items():
            self._read(state, inputs, group, slots, group_kv(kv, group), bad, reading)
        return reading

    def _read(
        self,
        state: BatchState,
        inputs: StepInputs,
        group: int,
        slots: NDArray[np.int64],
        expected: U64,
        bad: U64,
        reading: Reading,
    ) -> None:
        """Check all values visible to the step's queries; a sample depends on those of the last query."""
        position = np.arange(expected.shape[1])
        seen = position < inputs.seq_lens[:, None]
        seen &= (bad == 0)[:, None]
        summed = seen
        window = self.windows[group]
        if window:
            seen = seen & (position > (inputs.start - window)[:, None])
            summed = seen & (position >= (inputs.seq_lens - window)[:, None])
        at = np.where(seen, slots, 0)
        found = self.content[at]
        owner = self.owner[at]
        differs = found != expected
        poison = seen & (found == POISON)
        never_came = (owner == TRANSFERRED) & differs
        lost = seen & ((found == LOST) | never_came)
        wrong = seen & ~poison & ~lost & differs
        self._check(state, inputs, group, slots, wrong)
        reading.add(np.where(summed, found, np.uint64(0)), np.where(poison, owner, NOBODY), lost)

    def _write(
        self,
        state: BatchState,
        inputs: StepInputs,
        slots: NDArray[np.int64],
        values: U64,
        written: NDArray[np.bool_],
    ) -> NDArray[np.int64]:
        """Write the step's values; returns the slots."""
        which, where = np.nonzero(written)
        target = slots[written]
        rows_of_slots = inputs.row[which]
        self.content[target] = values[written]
        self.owner[target] = state.handle[rows_of_slots]
        self.position[target] = where
        return target

    def _check_writers(
        self, inputs: StepInputs, targets: list[NDArray[np.int64]], written: NDArray[np.bool_]
    ) -> None:
        if not targets:
            return
        target = np.concatenate(targets)
        ids, counts = np.unique(target, return_counts=True)
        if len(ids) == len(target):
            return
        which, _ = np.nonzero(written)
        slot = int(ids[counts > 1][0])
        block = slot // self.block_size
        writers = np.tile(which, len(targets))[target == slot]
        rows = inputs.row[writers].tolist()
        raise FakeKVError(f"rows {rows} write slot {slot} (block {block}) in one step")

    def _check(
        self,
        state: BatchState,
        inputs: StepInputs,
        group: int,
        slots: NDArray[np.int64],
        wrong: NDArray[np.bool_],
    ) -> None:
        if not wrong.any():
            return
        i, position = (int(axis[0]) for axis in np.nonzero(wrong))
        slot = int(slots[i, position])
        row = int(inputs.row[i])
        owner = self.owner[slot]
        held = "nothing"
        if owner != NOBODY:
            held = f"position {self.position[slot]} of handle {owner}"
        raise FakeKVError(
            f"row {row} (handle {state.handle[row]}) reads position {position} from slot {slot} (block "
            f"{slot // self.block_size}, group {group}), which does not hold its prefix but {held}"
        )
